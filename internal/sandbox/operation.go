package sandbox

import (
	"os"
	"strconv"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// operation is one connection whose operation is more than a question and an
// answer. It has left the loop: a goroutine of its own serves it to the end.
type operation struct {
	s *sandbox
	// conn is the connection. Reads and writes wait in the runtime's poller.
	conn *os.File
	// rest came with the request and belongs behind it.
	rest []byte
}

// longer reports whether an operation takes a goroutine of its own.
func longer(kind initwire.Kind) bool { return kind >= initwire.KindExec && kind < 72 }

// limit of the request's size: a command line may be long.
func (c *conn) limit() int {
	if len(c.in) > 4 && initwire.Kind(c.in[4]) == initwire.KindExec {
		return initwire.MaxStart
	}
	return initwire.MaxFrame
}

// handOver takes a connection out of the loop.
func (s *sandbox) handOver(c *conn, kind initwire.Kind, fields, rest []byte) {
	o := &operation{s: s, conn: os.NewFile(uintptr(c.fd), "operation"), rest: rest}
	c.fd = -1
	go func() {
		defer func() { _ = o.conn.Close() }()
		o.serve(kind, fields)
	}()
}

// serve is the whole operation.
func (o *operation) serve(kind initwire.Kind, _ []byte) {
	o.refuse("no operation of kind " + strconv.Itoa(int(kind)))
}

func (o *operation) refuse(why string) {
	_ = initwire.WriteFrame(o.conn, initwire.KindRefused, initwire.TextFields(why))
}
