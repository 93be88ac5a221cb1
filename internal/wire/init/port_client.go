package initwire

import (
	"context"
	"io"
)

// ConnectPort asks for a TCP connection to a port inside. From then on conn is its bytes, both ways, its
// half-closes included; the caller closes it. It is closed here if this did not work.
func ConnectPort(ctx context.Context, conn io.ReadWriteCloser, port int) error {
	c, err := ask(ctx, conn, KindConnect, NumberFields(int64(port)))
	if err != nil {
		return err
	}
	// ReadFrame takes not a byte more than its frame.
	if _, err := c.expect(KindConnected); err != nil {
		c.close()
		return err
	}
	if !c.release() {
		return c.because(io.ErrClosedPipe) // ctx ended in this moment, and closed it
	}
	return nil
}

// ListPorts asks on which TCP ports somebody listens inside.
func ListPorts(ctx context.Context, conn io.ReadWriteCloser) ([]Listening, error) {
	c, err := ask(ctx, conn, KindPorts, nil)
	if err != nil {
		return nil, err
	}
	defer c.close()
	body, err := c.expect(KindPortList)
	if err != nil {
		return nil, err
	}
	list, err := ParsePortList(body)
	if err != nil {
		return nil, err
	}
	return list.Listening, nil
}
