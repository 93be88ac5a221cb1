package ports

import (
	"encoding/binary"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Connections to ports inside are made by system calls and not by package net, which would cost
// init a tenth of its start.

// The bounds of connections to ports.
const (
	// connectTime is how long a connection inside may take. The kernel answers at once, unless the
	// listener's backlog is full.
	connectTime = 5 * time.Second
	// portBuffer is how many bytes are passed on at a time.
	portBuffer = 32 << 10
)

// Serve serves one operation on ports to its end. brief is the gate for its short system calls.
func Serve(o *operation.Conn, brief system.Gate, kind initwire.Kind, fields []byte) {
	switch kind {
	case initwire.KindConnect:
		connect(o, brief, fields)
	case initwire.KindPorts:
		brief.Enter()
		// The kernel writes the list while it is read, which takes microseconds.
		list, err := listening()
		brief.Leave()
		if err != nil {
			o.Refuse("list of ports: " + err.Error())
			return
		}
		_ = o.WriteFrame(initwire.KindPortList, list.Fields())
	default:
		o.Refuse("no operation on ports has the kind " + strconv.Itoa(int(kind)))
	}
}

// connect makes the client's connection one to a port inside, until both ends have closed it.
func connect(o *operation.Conn, brief system.Gate, fields []byte) {
	port, err := initwire.ParseNumber(fields)
	if err != nil || port < 1 || port > 65535 {
		o.Refuse("port " + strconv.FormatInt(port, 10) + " is none: ports are 1 to 65535")
		return
	}
	inside, why := dialInside(int(port), brief)
	if inside == nil {
		o.Refuse("port " + strconv.FormatInt(port, 10) + ": " + why)
		return
	}
	defer func() { _ = inside.Close() }()
	if o.WriteFrame(initwire.KindConnected, nil) != nil {
		return
	}
	// From here on there is no time limit: silence is up to the two ends.
	_ = o.Endpoint.SetDeadline(time.Time{}) // from here on, silence is the two ends' own affair
	// The client may have sent bytes for the port right behind its request.
	if early := o.Early(); len(early) > 0 {
		if _, err := inside.Write(early); err != nil {
			return
		}
	}
	// Each direction has a goroutine, and both must have ended before the connection is closed.
	back := make(chan struct{})
	go func() {
		defer close(back)
		pass(o.Endpoint, inside)
	}()
	pass(inside, o.Endpoint)
	<-back
}

// pass copies from one connection to the other, to the end of from, and then ends to. If either
// breaks, it ends both in both directions, because what goes the other way has no reader any more.
func pass(to, from *system.Endpoint) {
	buf := make([]byte, portBuffer)
	for {
		n, err := from.Read(buf)
		// What came is passed on even if an error came with it.
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				shut(to, syscall.SHUT_RDWR)
				shut(from, syscall.SHUT_RDWR)
				return
			}
		}
		if err == io.EOF {
			shut(to, syscall.SHUT_WR)
			return
		}
		if err != nil {
			shut(to, syscall.SHUT_RDWR)
			shut(from, syscall.SHUT_RDWR)
			return
		}
	}
}

// shut closes one direction of a connection, or both.
func shut(l *system.Endpoint, how int) {
	l.Brief.Enter()
	defer l.Brief.Leave()
	_ = l.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), how) })
}

// dialInside connects to a port on the loopback addresses, first IPv4, then IPv6. If it fails, why
// is a reason for the client.
func dialInside(port int, brief system.Gate) (conn *system.Endpoint, why string) {
	conn, err := dialTCP(syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}, brief)
	if err == nil {
		return conn, ""
	}
	v6 := &syscall.SockaddrInet6{Port: port}
	v6.Addr[15] = 1
	// Some programs listen on the address of IPv6 only.
	conn, err6 := dialTCP(syscall.AF_INET6, v6, brief)
	switch {
	case err6 == nil:
		return conn, ""
	case err == syscall.ECONNREFUSED:
		return nil, "nothing listens on it inside"
	// The kernel does not answer for a listener whose backlog is full.
	case err == os.ErrDeadlineExceeded:
		return nil, "who listens on it inside does not accept connections"
	}
	return nil, err.Error()
}

// dialTCP connects to one address, and waits for connectTime at most.
func dialTCP(family int, to syscall.Sockaddr, brief system.Gate) (*system.Endpoint, error) {
	conn, made, err := beginTCP(family, to, brief)
	if err != nil || made {
		return conn, err
	}
	if err := connected(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// beginTCP begins a connection. made: it exists already, and need not be waited for.
func beginTCP(family int, to syscall.Sockaddr, brief system.Gate) (conn *system.Endpoint, made bool, err error) {
	brief.Enter()
	defer brief.Leave()
	// It never blocks: waiting is the poller's.
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, err
	}
	// Small packets must not wait: what is passed on may be keystrokes.
	_ = syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	err = syscall.Connect(fd, to)
	if err != nil && err != syscall.EINPROGRESS && err != syscall.EINTR {
		_ = syscall.Close(fd)
		return nil, false, err
	}
	made = err == nil
	conn, err = system.NewEndpoint(fd, "port", brief)
	return conn, made, err
}

// connected waits until a connection exists, or says why it does not.
func connected(conn *system.Endpoint) error {
	_ = conn.SetWriteDeadline(time.Now().Add(connectTime))
	var broken error
	err := conn.WhenWritable(func(fd uintptr) (done bool) {
		var errno int
		conn.Brief.Enter()
		errno, broken = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
		conn.Brief.Leave()
		if broken != nil || errno != 0 {
			if broken == nil {
				broken = syscall.Errno(errno)
			}
			return true
		}
		// Without an error and without a peer, the connection is still under way.
		_, err := syscall.Getpeername(int(fd))
		return err == nil
	})
	_ = conn.SetWriteDeadline(time.Time{})
	if broken != nil {
		return broken
	}
	if err != nil && os.IsTimeout(err) {
		return os.ErrDeadlineExceeded
	}
	return err
}

// listening lists the listeners that the kernel knows, up to initwire.MaxListening.
func listening() (*initwire.PortList, error) {
	list := &initwire.PortList{}
	for _, path := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(path)
		// Only the file of IPv6 may be missing.
		if os.IsNotExist(err) && len(path) > len("/proc/self/net/tcp") {
			continue // a kernel without it
		}
		if err != nil {
			return nil, err
		}
		err = eachLine(f, func(line string) bool {
			if l, ok := parseListening(line); ok {
				list.Listening = append(list.Listening, l)
			}
			return len(list.Listening) < initwire.MaxListening
		})
		_ = f.Close()
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// eachLine calls f for each line of r until f answers false. A line longer than the buffer is
// skipped.
func eachLine(r io.Reader, f func(line string) bool) error {
	buf := make([]byte, 0, 8<<10)
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		text := string(buf)
		for {
			line, rest, whole := strings.Cut(text, "\n")
			if !whole {
				break
			}
			if !f(line) {
				return nil
			}
			text = rest
		}
		// The buffer is full of one line without an end.
		if len(text) == cap(buf) {
			text = "" // no line of ours is so long
		}
		buf = append(buf[:0], text...)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// parseListening reads a line of /proc/net/tcp. Addresses there are hexadecimal, in words of the
// machine's own byte order.
func parseListening(line string) (l initwire.Listening, ok bool) {
	// The state TCP_LISTEN, as the kernel writes it.
	const listen = "0A"
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[3] != listen {
		return l, false
	}
	address, port, found := strings.Cut(fields[1], ":")
	if !found || len(address) != 8 && len(address) != 32 {
		return l, false
	}
	// An address of IPv6 has four such words.
	for ; address != ""; address = address[8:] {
		word, err := strconv.ParseUint(address[:8], 16, 32)
		if err != nil {
			return l, false
		}
		l.IP = binary.NativeEndian.AppendUint32(l.IP, uint32(word))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil || number == 0 {
		return l, false
	}
	uid, err := strconv.ParseUint(fields[7], 10, 32)
	l.Port, l.UID = int(number), int(uid)
	return l, err == nil
}
