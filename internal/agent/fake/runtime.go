package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/wait"
)

// Node holds the sandboxes of a pretended machine.
type Node struct {
	mu     sync.Mutex
	bodies map[string]*body // by directory
}

// NewNode is a machine where nothing runs.
func NewNode() *Node { return &Node{bodies: map[string]*body{}} }

// Close ends all its sandboxes, as the loss of the machine would.
func (n *Node) Close() {
	n.mu.Lock()
	var all []*body
	for _, b := range n.bodies {
		all = append(all, b)
	}
	n.bodies = map[string]*body{}
	n.mu.Unlock()
	for _, b := range all {
		b.kill()
		<-b.done
	}
}

// Running counts the sandboxes that have not ended.
func (n *Node) Running() (running int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, b := range n.bodies {
		select {
		case <-b.done:
		default:
			running++
		}
	}
	return running
}

// Config of a runtime.
type Config struct {
	// Node is where its sandboxes live; a new one if nil.
	Node *Node
	// Name is the runtime's name; "fake" if empty.
	Name string
	// Images: sandboxes may ask for an image, as on a container runtime.
	Images bool
	// StartTime is how long each start takes.
	StartTime time.Duration
	// CheckError is what Check says.
	CheckError error
	// Isolation is how much its sandboxes pretend to have.
	Isolation muster.Isolation
}

// Runtime is the fake.
type Runtime struct {
	config Config
	node   *Node
}

var _ contract.Runtime = (*Runtime)(nil)

// New makes a runtime.
func New(c Config) (*Runtime, error) {
	c.Name = cmp.Or(c.Name, "fake")
	if c.Node == nil {
		c.Node = NewNode()
	}
	return &Runtime{config: c, node: c.Node}, nil
}

// Name is what it was configured to be.
func (r *Runtime) Name() string { return r.config.Name }

// Node is where its sandboxes live.
func (r *Runtime) Node() *Node { return r.node }

// Check says what it was configured to say.
func (r *Runtime) Check(context.Context) error { return r.config.CheckError }

// Isolation is what it was configured to be.
func (r *Runtime) Isolation() muster.Isolation { return r.config.Isolation }

// Start makes a sandbox. See contract.Runtime.
func (r *Runtime) Start(ctx context.Context, c contract.SandboxConfig) (contract.Sandbox, error) {
	if c.Container != nil && !r.config.Images {
		return nil, failure(muster.FailureUser, muster.ReasonNoRuntime, "image %q: the runtime %q has no images", c.Container.Image.Ref, r.config.Name)
	}
	steps, err := parse(c.Command)
	if err != nil {
		return nil, err
	}
	if !wait.For(ctx, r.config.StartTime) {
		return nil, failure(muster.FailureNode, muster.ReasonNodeFault, "start the sandbox: %v", context.Cause(ctx))
	}
	if info, err := os.Stat(c.Work); err != nil || !info.IsDir() {
		return nil, failure(muster.FailureUser, muster.ReasonNoWorkdir, "work directory %q: not a directory that exists", c.Work)
	}
	b := newBody(c, steps)
	r.node.mu.Lock()
	_, taken := r.node.bodies[c.Dir]
	if !taken {
		r.node.bodies[c.Dir] = b
	}
	r.node.mu.Unlock()
	if taken {
		return nil, failure(muster.FailureNode, muster.ReasonNodeFault, "a sandbox was started in %s before", c.Dir)
	}
	go b.run()
	return newSandbox(b), nil
}

// Attach finds a sandbox. See contract.Runtime.
func (r *Runtime) Attach(_ context.Context, dir string) (contract.Sandbox, error) {
	r.node.mu.Lock()
	b, ok := r.node.bodies[dir]
	r.node.mu.Unlock()
	if _, err := os.Stat(dir); !ok || errors.Is(err, os.ErrNotExist) {
		return nil, contract.ErrNoSandbox
	}
	return newSandbox(b), nil
}

// Remove ends a sandbox. See contract.Runtime.
func (r *Runtime) Remove(_ context.Context, dir string) error {
	r.node.mu.Lock()
	b, ok := r.node.bodies[dir]
	r.node.mu.Unlock()
	if ok {
		b.kill()
		<-b.done
	}
	return nil
}

// sandbox is what one agent holds of a body.
type sandbox struct {
	*body
	closed chan struct{}
	once   sync.Once
	ended  chan struct{}
}

func newSandbox(b *body) *sandbox {
	s := &sandbox{body: b, closed: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		select {
		case <-b.done:
		case <-s.closed:
			return
		}
		// Both may have happened before this goroutine ran. One that was closed does not tell of its end.
		select {
		case <-s.closed:
		default:
			close(s.ended)
		}
	}()
	return s
}

// A pretended sandbox has all capabilities.
var _ interface {
	contract.Sandbox
	contract.Freezer
	contract.Reachable
	contract.OOMCounter
} = (*sandbox)(nil)

func (s *sandbox) Done() <-chan struct{} { return s.ended }

func (s *sandbox) Result() contract.Result {
	<-s.ended
	return s.result
}

func (s *sandbox) Started() time.Time { return s.started }

func (s *sandbox) Stop(grace time.Duration) { s.stop(grace) }

func (s *sandbox) Freeze(context.Context) error { return s.freeze(true) }

func (s *sandbox) Thaw() error {
	err := s.freeze(false)
	if errors.Is(err, contract.ErrNoSandbox) {
		err = nil
	}
	return err
}

func (s *sandbox) Frozen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frozen
}

func (s *sandbox) Usage() contract.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

func (s *sandbox) OOMKills() int64 { return s.Usage().OOMKills }

// Init knows nothing but commands, see serveInit.
func (s *sandbox) Init(context.Context) (net.Conn, error) {
	select {
	case <-s.done:
		return nil, contract.ErrNoSandbox
	default:
	}
	here, there := net.Pipe()
	go s.serveInit(there)
	return here, nil
}

func (s *sandbox) Output(stream string) contract.OutputLog {
	if stream == "stderr" {
		return &s.stderr
	}
	return &s.stdout
}

func (s *sandbox) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func failure(class muster.FailureClass, reason muster.Reason, format string, args ...any) *muster.Failure {
	return &muster.Failure{Class: class, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// number reads a word that must be a number.
func number(word string) (int, error) {
	n, err := strconv.Atoi(word)
	if err != nil || n < 0 {
		return 0, failure(muster.FailureUser, muster.ReasonSpec, "fake command: %q is not a number", word)
	}
	return n, nil
}

func signalName(sig syscall.Signal) string { return unix.SignalName(sig) }
