package fake

import (
	"cmp"
	"net"
	"time"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// serveInit answers one request as an init would. Executions are words of the fake: "exit N", and anything else exits with 0;
// nothing else is known. One that stands still answers when it goes on.
func (b *body) serveInit(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	kind, fields, err := initwire.ReadFrame(conn, initwire.MaxStart)
	if err != nil || b.stand() != nil {
		return
	}
	if kind != initwire.KindExec {
		_ = initwire.WriteFrame(conn, initwire.KindRefused, initwire.TextFields("a pretended sandbox only runs commands"))
		return
	}
	want, err := initwire.ParseExec(fields)
	if err != nil {
		_ = initwire.WriteFrame(conn, initwire.KindRefused, initwire.TextFields(err.Error()))
		return
	}
	now := time.Now().UnixNano()
	id := want.ID
	id = cmp.Or(id, "exec")
	ended := initwire.ExecEnded{Started: now, Ended: now}
	if len(want.Command) == 2 && want.Command[0] == "exit" {
		if n, err := number(want.Command[1]); err == nil {
			ended.Exit = n
		}
	}
	if initwire.WriteFrame(conn, initwire.KindExecStarted, (&initwire.ExecStarted{ID: id, At: now}).Fields()) == nil {
		_ = initwire.WriteFrame(conn, initwire.KindExecEnded, ended.Fields())
	}
}
