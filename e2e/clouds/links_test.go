package clouds

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// links are the connections between the servers of a cluster. Each server is reached through a proxy of the
// test's, which knows whose a connection is by the process that made it.
type links struct {
	t *testing.T
	// pid is the process of a server now, by its place.
	pid func(server int) int

	mu sync.Mutex
	// changed is closed and replaced at every change.
	changed chan struct{}
	// cut says that nothing gets from one server to another; delay is how long it takes.
	cut   map[[2]int]bool
	delay time.Duration
}

func newLinks(t *testing.T, pid func(int) int) *links {
	return &links{t: t, pid: pid, changed: make(chan struct{}), cut: map[[2]int]bool{}}
}

// set changes what gets through.
func (l *links) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	close(l.changed)
	l.changed = make(chan struct{})
}

// heal lets everything through.
func (l *links) heal() {
	l.set(func() { l.cut, l.delay = map[[2]int]bool{}, 0 })
}

// cutOff keeps a server from being heard by the others, and if both ways from hearing them.
func (l *links) cutOff(server int, bothWays bool) {
	l.set(func() {
		for other := range 3 {
			l.cut[[2]int{server, other}] = true
			if bothWays {
				l.cut[[2]int{other, server}] = true
			}
		}
	})
}

// serve passes what comes to an address on to a server, until the test ends.
func (l *links) serve(server int, address, to string) {
	l.t.Helper()
	ln, err := net.Listen("tcp", address)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go l.pass(c, server, to)
		}
	}()
}

// pass copies both ways of a connection.
func (l *links) pass(c net.Conn, server int, to string) {
	defer c.Close()
	from := l.maker(c)
	out, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer out.Close()
	over := make(chan struct{}, 2)
	go func() { l.copy(out, c, [2]int{from, server}); over <- struct{}{} }()
	go func() { l.copy(c, out, [2]int{server, from}); over <- struct{}{} }()
	<-over
}

// copy passes bytes on as far as the link lets them. What waits at a cut link is sent when it is healed, as
// TCP does.
func (l *links) copy(to io.Writer, from io.Reader, link [2]int) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		for {
			l.mu.Lock()
			cut, delay, changed := l.cut[link], l.delay, l.changed
			l.mu.Unlock()
			if !cut {
				<-time.After(delay)
				break
			}
			<-changed
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// maker is the server whose process has the other end of a connection; -1 if none has.
func (l *links) maker(c net.Conn) int {
	port := c.RemoteAddr().(*net.TCPAddr).Port
	inode := ""
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return -1
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if fields := strings.Fields(s.Text()); len(fields) > 9 && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			inode = "socket:[" + fields[9] + "]"
		}
	}
	for server := range 3 {
		all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", l.pid(server)))
		for _, fd := range all {
			if target, err := os.Readlink(fd); err == nil && target == inode {
				return server
			}
		}
	}
	return -1
}
