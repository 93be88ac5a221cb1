package sandbox

import (
	"runtime"
	"strconv"

	"github.com/musterhq/muster/internal/sandbox/execs"
	"github.com/musterhq/muster/internal/sandbox/files"
	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/ports"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// maxOperations is how many operations go on at once. More are refused.
const maxOperations = 512

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
	if s.operations.Add(1) > maxOperations {
		s.operations.Add(-1)
		s.refuse(c, strconv.Itoa(maxOperations)+" operations are going on in this sandbox, more are not served at once")
		return
	}
	if !s.serving {
		s.serving = true
		if runtime.GOMAXPROCS(0) < system.Processors {
			runtime.GOMAXPROCS(system.Processors)
		}
		s.execs.Open(execs.Config{
			Work: s.start.Work, User: s.start.User, Contained: s.start.Contained, ShieldOOM: s.start.ShieldOOM,
			Launcher: s.launcher(), Env: s.env, Dir: initwire.FDOutput, Gates: s.gates,
		})
	}
	conn, err := system.NewEndpoint(c.fd, "operation", s.gates.Brief)
	c.fd = -1
	if err != nil {
		s.operations.Add(-1)
		return
	}
	go func() {
		defer s.operations.Add(-1)
		defer func() { _ = conn.Close() }()
		s.serve(operation.New(conn, rest), kind, fields)
	}()
	// It goes first, on this thread: waking another for it costs a twentieth of an execution's
	// start.
	runtime.Gosched()
}

// serve is the whole operation.
func (s *sandbox) serve(o *operation.Conn, kind initwire.Kind, fields []byte) {
	switch {
	case kind < initwire.KindFileList:
		s.execs.Serve(o, kind, fields)
	case kind < initwire.KindConnect:
		service := files.Service{Work: s.start.Work, User: s.start.User, Contained: s.start.Contained, Gate: s.gates.Files}
		service.Serve(o, kind, fields)
	case kind <= initwire.KindPorts:
		ports.Serve(o, s.gates.Brief, kind, fields)
	default:
		o.Refuse("no operation of kind " + strconv.Itoa(int(kind)))
	}
}
