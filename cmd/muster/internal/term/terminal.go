package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Terminal is the user's terminal, which a command inside a sandbox may have for a while. Its
// methods may be called from several goroutines: whatever ends a session restores the terminal
// first.
type Terminal struct {
	fd int

	mu sync.Mutex
	// was is the state from before Raw; nil while the terminal is as the user left it.
	was *term.State
}

// TerminalOf is the terminal that stdin is; nil if it is none. Size and Restore may be called on
// nil.
func TerminalOf(stdin io.Reader) *Terminal {
	f, is := stdin.(*os.File)
	if !is || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &Terminal{fd: int(f.Fd())}
}

// Size is how many rows and columns the terminal has; 0 where they are not known.
func (t *Terminal) Size() (rows, cols int) {
	if t == nil {
		return 0, 0
	}
	cols, rows, err := term.GetSize(t.fd)
	if err != nil {
		return 0, 0
	}
	return rows, cols
}

// Height is how many lines the terminal has that is written to; 0 if there is none, or if it is not
// known.
func Height(w io.Writer) int {
	f, is := w.(*os.File)
	if !is {
		return 0
	}
	_, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return height
}

// Raw gives all keys to the command, Ctrl-C as well. Restore must follow, whatever happens: a shell
// on a raw terminal cannot be used.
func (t *Terminal) Raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, err := term.MakeRaw(t.fd)
	if err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	t.was = was
	return nil
}

// Keys sends each key when it is pressed, and does not show it. Ctrl-C is still a signal. Restore must
// follow, as with Raw.
func (t *Terminal) Keys() (<-chan byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was, err := term.GetState(t.fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	now, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	now.Lflag &^= unix.ICANON | unix.ECHO
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETS, now); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	t.was = was
	keys := make(chan byte, 16)
	go t.read(keys)
	return keys, nil
}

// lookForKeys is how often a reader of keys looks whether it still should, in milliseconds.
const lookForKeys = 200

// read sends keys until Restore. It waits for each by polling, because a read could not be ended.
func (t *Terminal) read(keys chan<- byte) {
	defer close(keys)
	var b [1]byte
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}, lookForKeys)
		t.mu.Lock()
		over := t.was == nil
		t.mu.Unlock()
		switch {
		case over, err != nil && err != unix.EINTR:
			return
		case n <= 0:
			continue
		}
		if n, err := unix.Read(t.fd, b[:]); n <= 0 || err != nil {
			return
		}
		select {
		case keys <- b[0]:
		default: // nobody looks
		}
	}
}

// Restore makes the terminal as it was before Raw. It may be called at any time and by any
// goroutine; without Raw before, it does nothing.
func (t *Terminal) Restore() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.was != nil {
		_ = term.Restore(t.fd, t.was)
		t.was = nil
	}
}

// SignalNumber is the number of a signal by its name, as KILL or SIGKILL; 0 if there is no such
// signal.
func SignalNumber(name string) int {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	return int(unix.SignalNum(name))
}
