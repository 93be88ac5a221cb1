package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
)

const (
	defaultOutput = 1 << 20
	// afterExit is how long the output of a command that has ended is waited for: something that it left behind may hold it open.
	afterExit = 2 * time.Second
	// outputBuffer is for each of a command's outputs.
	outputBuffer = 8 << 10
	// limitScript kills the command on the host itself. It is tried first, as old ones take other arguments.
	limitScript = `if timeout -s KILL 1 true 2>/dev/null; then exec timeout -s KILL "$0" "$@"; fi; exec "$@"`
	// commandName is the longest part of a command that errors repeat.
	commandName = 80
)

// Command is one to run on a host.
type Command struct {
	// Args is the program and its arguments, as they are: nothing is expanded. With Script they are its $1, $2, ….
	Args []string
	// Script is for sh, on one line and without backslashes: it passes through whatever shell the user has.
	Script string
	// Purpose is how errors call it, as "look at the host"; empty: by its words. A script needs one: its text helps nobody.
	Purpose string
	// Stdin is read to its end; nil is empty. A Read of it that never returns is left behind.
	Stdin io.Reader
	// Root: it needs root, and is run by sudo if the user is another one.
	Root bool
	// Limit bounds the command instead of Config.CommandLimit.
	Limit time.Duration
	// Output bounds what is kept of each output: its beginning and its end. 1 MiB if zero.
	Output int

	stdout io.Writer // gets the output instead; written to even after Run has returned an error
	gentle bool      // not killed when it is given up: it cleans up when its input ends
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr []byte
	// Exit is its status; -1 if a signal ended it.
	Exit int
	// Signal that ended it, as "KILL"; else empty.
	Signal string
	// Missing bytes in the midst of Stdout or Stderr, because there were more than Command.Output.
	Missing int64
}

// Failure says in words how it failed; empty if it did not.
func (r Result) Failure() string {
	how := fmt.Sprintf("exit status %d", r.Exit)
	switch {
	case r.Exit == 0:
		return ""
	case r.Signal != "":
		how = "killed by SIG" + r.Signal
	}
	if text := lastLine(r.Stderr); text != "" {
		return how + ": " + text
	}
	return how
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.ToValidUTF8(strings.TrimSpace(lines[len(lines)-1]), "?")
}

// Quote makes one line for a shell from words that it must leave alone.
func Quote(words ...string) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if w != "" && strings.IndexFunc(w, special) < 0 {
			b.WriteString(w)
			continue
		}
		b.WriteByte('\'')
		b.WriteString(strings.ReplaceAll(w, "'", `'\''`))
		b.WriteByte('\'')
	}
	return b.String()
}

// special: some shell could find a meaning in it.
func special(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("/._-+:,@", r)
}

func (c Command) words() []string {
	if c.Script == "" {
		return c.Args
	}
	return append([]string{"sh", "-c", c.Script, "sh"}, c.Args...)
}

// name is how errors call it.
func (c Command) name() string {
	name := Quote(c.words()...)
	switch {
	case c.Purpose != "":
		return c.Purpose
	case c.Script != "":
		return "a script"
	}
	if len(name) > commandName {
		name = strings.ToValidUTF8(name[:commandName], "") + "…"
	}
	return name
}

// Run runs a command to its end. An error means that its end is not known, or that it could not be
// begun; a status that is not 0 is no error. When its limit has passed it is killed on the host, by the host's own timeout
// program, so that this does not need the connection. When ctx ends before, it is sent SIGKILL at once, which
// sshd does only for users other than root; else it lives on to its limit.
func (c *Conn) Run(ctx context.Context, cmd Command) (Result, error) {
	words := cmd.words()
	if len(words) == 0 {
		return Result{}, muster.Faultf(muster.FaultInvalid, "host %s: an empty command", c.config.Address)
	}
	limit := cmd.Limit
	if limit <= 0 {
		limit = c.config.CommandLimit
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	words = append([]string{"sh", "-c", limitScript, strconv.Itoa(int((limit+time.Second-1)/time.Second) + 1)}, words...)
	sudo := cmd.Root && c.config.User != "root"
	if sudo {
		words = append([]string{"sudo", "-n", "--"}, words...)
	}
	// exec: so that a signal that ends the command is seen as one, and reaches it.
	r, err := c.run(ctx, "exec "+Quote(words...), cmd)
	if err != nil {
		return r, fmt.Errorf("%s: %w", cmd.name(), err)
	}
	if sudo {
		err = c.sawSudo(ctx, r)
	}
	return r, err
}

// sawSudo finds out whether it was sudo that failed, by asking it for nothing.
func (c *Conn) sawSudo(ctx context.Context, r Result) error {
	c.mu.Lock()
	may := c.maySudo
	c.mu.Unlock()
	if may {
		return nil
	}
	if r.Exit != 0 {
		trial, err := c.run(ctx, Quote("sudo", "-n", "true"), Command{})
		if err != nil {
			return fmt.Errorf("sudo: %w", err)
		}
		if trial.Exit != 0 {
			return muster.Faultf(muster.FaultAuth, "host %s: %s may not use sudo without a password (%s): give it NOPASSWD in sudoers, or log in as root",
				c.config.Address, c.config.User, trial.Failure())
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.maySudo = true
	return nil
}

// session opens a channel that runs a command. Once it has been asked to run, what becomes of it is not known before it says so.
func (c *Conn) session(ctx context.Context, line string) (channel, error) {
	ch, err := c.openChannel(ctx, "session", nil)
	if err != nil {
		return channel{}, c.unreached("a shell", err)
	}
	asked := make(chan error, 1)
	go func() {
		ok, err := ch.SendRequest("exec", true, ssh.Marshal(&struct{ Line string }{line}))
		if err == nil && !ok {
			err = &muster.Fault{Kind: muster.FaultAuth, Message: fmt.Sprintf("host %s: its sshd runs no commands for %s", c.config.Address, c.config.User)}
		}
		asked <- err
	}()
	select {
	case err = <-asked:
		if err == nil {
			return ch, nil
		}
		if muster.KindOf(err) != muster.FaultAuth {
			err = c.unknown(c.endOf(err))
		}
	case <-ctx.Done():
		err = c.unknown(ctx.Err())
	}
	c.leaveChannel(ch)
	return channel{}, err
}

// endOf is the true reason where the library only says that something has ended.
func (c *Conn) endOf(err error) error {
	if errors.Is(err, io.EOF) && c.wire.broken.Load() {
		return c.ended()
	}
	return err
}

func (c *Conn) unknown(err error) error {
	return &muster.Fault{Kind: muster.FaultAmbiguous, Message: fmt.Sprintf("host %s: what became of the command is not known", c.config.Address), Err: err}
}

// leaveChannel closes a channel that no stream looks after, without waiting.
func (c *Conn) leaveChannel(ch channel) {
	c.leave()
	go func() {
		_ = ch.Close()
		ssh.DiscardRequests(ch.requests)
		c.release(true)
	}()
}

// ending is how a command ended, as its host says.
type ending struct {
	exit   int
	signal string
}

// listen takes what the host says about a session, until its channel is gone.
func listen(requests <-chan *ssh.Request, said chan<- ending) {
	defer close(said)
	for r := range requests {
		switch r.Type {
		case "exit-status":
			var p struct{ Status uint32 }
			if ssh.Unmarshal(r.Payload, &p) == nil {
				tell(said, ending{exit: int(p.Status)})
			}
		case "exit-signal":
			var p struct {
				Name       string
				CoreDumped bool
				Message    string
				Language   string
			}
			if ssh.Unmarshal(r.Payload, &p) == nil {
				tell(said, ending{exit: -1, signal: p.Name})
			}
		}
		_ = r.Reply(false, nil)
	}
}

// tell keeps the first: a host that says it twice must not block the connection.
func tell(said chan<- ending, e ending) {
	select {
	case said <- e:
	default:
	}
}

func (c *Conn) run(ctx context.Context, line string, cmd Command) (Result, error) {
	ch, err := c.session(ctx, line)
	if err != nil {
		return Result{}, err
	}
	limit := cmd.Output
	if limit <= 0 {
		limit = defaultOutput
	}
	stdout, stderr := &excerpt{limit: limit}, &excerpt{limit: limit}
	said, gone := make(chan ending, 1), make(chan struct{})
	go func() {
		listen(ch.requests, said)
		c.release(true)
		close(gone)
	}()
	outputs := make(chan struct{}, 2)
	var sink io.Writer = stdout
	if cmd.stdout != nil {
		sink = cmd.stdout
	}
	for from, to := range map[io.Reader]io.Writer{ch: sink, ch.Stderr(): stderr} {
		go func() {
			_, _ = io.CopyBuffer(to, from, make([]byte, outputBuffer))
			outputs <- struct{}{}
		}()
	}
	go func() {
		if cmd.Stdin != nil {
			_, _ = io.Copy(ch, cmd.Stdin)
		}
		_ = ch.CloseWrite()
	}()
	end, err := c.await(ctx, said, outputs)
	c.leave()
	go func() { // nothing of this may keep the caller waiting
		if err != nil && !cmd.gentle {
			_, _ = ch.SendRequest("signal", false, ssh.Marshal(&struct{ Name string }{"KILL"}))
		}
		_ = ch.Close()
		<-gone
	}()
	r := Result{Exit: end.exit, Signal: end.signal}
	var missing int64
	r.Stdout, r.Missing = stdout.bytes()
	r.Stderr, missing = stderr.bytes()
	r.Missing += missing
	return r, err
}

// await waits for the end of a command and of both its outputs.
func (c *Conn) await(ctx context.Context, said <-chan ending, outputs <-chan struct{}) (ending, error) {
	var end *ending
	var late <-chan time.Time
	for open := 2; end == nil || open > 0; {
		select {
		case e, ok := <-said:
			if !ok && end == nil {
				return ending{exit: -1}, c.unknown(c.endOf(io.EOF))
			}
			if !ok {
				said = nil
				continue
			}
			if end != nil {
				continue // the first is the one
			}
			end = &e
			t := time.NewTimer(afterExit)
			defer t.Stop()
			late = t.C
		case <-outputs:
			open--
		case <-late:
			return *end, nil
		case <-ctx.Done():
			return ending{exit: -1}, c.unknown(ctx.Err())
		}
	}
	if c.wire.broken.Load() {
		return *end, c.unknown(c.ended()) // the outputs may be cut off
	}
	return *end, nil
}
