package rootless

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxMessage bounds one message, maxFiles the descriptors that come with it.
	maxMessage = 16 << 20
	maxFiles   = 16
)

// Each call has a connection of its own, one end of which is sent through the connection that both
// processes have from the start. So calls do not wait for each other.

// dial opens the connection of one call.
func dial(control *net.UnixConn) (*net.UnixConn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "call"), os.NewFile(uintptr(pair[1]), "call")
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	if _, _, err := control.WriteMsgUnix([]byte{0}, unix.UnixRights(int(theirs.Fd())), nil); err != nil {
		return nil, err
	}
	return connOf(ours)
}

// connOf is a connection by a copy of a file.
func connOf(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("%s is no unix socket", f.Name())
	}
	return u, nil
}

// call sends a request with descriptors and returns what comes with the answer, which is decoded.
func call(ctx context.Context, control *net.UnixConn, request any, files []int, answer any) ([]int, error) {
	c, err := dial(control)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := send(c, request, files); err != nil {
		return nil, err
	}
	got, err := receive(c, answer)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return got, err
}

// serve answers calls until the other process is gone; each by handle on a goroutine of its own.
func serve(control *net.UnixConn, handle func(*net.UnixConn)) error {
	for {
		text, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
		n, nrights, _, _, err := control.ReadMsgUnix(text, rights)
		if errors.Is(err, io.EOF) || err == nil && n == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		files, err := filesOf(rights[:nrights])
		if err != nil || len(files) != 1 {
			closeAll(files)
			return fmt.Errorf("a call without a connection: %w", err)
		}
		f := os.NewFile(uintptr(files[0]), "call")
		c, err := connOf(f)
		_ = f.Close()
		if err != nil {
			return err
		}
		go func() {
			handle(c)
			_ = c.Close()
		}()
	}
}

// send sends one message: its length, with which the descriptors go, and JSON.
func send(c *net.UnixConn, message any, files []int) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		rights = unix.UnixRights(files...)
	}
	if _, _, err := c.WriteMsgUnix(binary.BigEndian.AppendUint32(nil, uint32(len(b))), rights, nil); err != nil {
		return err
	}
	_, err = c.Write(b)
	return err
}

// receive reads one message.
func receive(c *net.UnixConn, message any) (files []int, err error) {
	head, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, nrights, _, _, err := c.ReadMsgUnix(head, rights)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if files, err = filesOf(rights[:nrights]); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxMessage {
		return files, fmt.Errorf("a message of %d bytes", size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(c, b); err != nil {
		return files, err
	}
	return files, json.Unmarshal(b, message)
}

// filesOf are the descriptors in a control message. They stay numbers: an os.File would change
// whether a descriptor blocks, also for whoever gets it next.
func filesOf(rights []byte) (files []int, err error) {
	if len(rights) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, fd)
		}
	}
	return files, nil
}

func closeAll(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}
