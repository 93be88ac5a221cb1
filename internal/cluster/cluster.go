package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/forward"
	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
)

const (
	// MaxMembers bounds the servers of a cluster. More than seven voters only make each write slower.
	MaxMembers = 9
	// TokenLife is how long a join token is good.
	TokenLife = time.Hour
	// askTime bounds a question to another server.
	askTime = 2 * time.Second
	// lookEvery is how often the leader asks the others for their state.
	lookEvery = time.Second
	// aliveFor is how long after its last answer a server still counts as running.
	aliveFor = 5 * time.Second
	// orphanedFor is how long a server is without a leader before it asks the others whether it was removed.
	orphanedFor = 5 * time.Second
	// answerMost bounds the answer of another server to a question, in bytes.
	answerMost = 64 << 10
)

// ErrRemoved says that this server is no longer a member.
var ErrRemoved = errors.New("this server was removed from its cluster (`muster servers list` on another one shows the members); to join again, move its data directory away and use a new join token")

// Config is what a Cluster is made of. All fields but the logger are needed.
type Config struct {
	DataDir string
	Spec    api.ClusterSpec
	Start   Start
	// Version is that of the program, Reads the newest log format that it reads.
	Version string
	Reads   int
	// API is the address of this server's API for clients on other hosts; empty: it has none.
	API string
	// Secrets returns the files that a joining server gets. It makes those that are missing.
	Secrets func() (map[string][]byte, error)
	Logger  *slog.Logger
}

// Log is the part of the log that a Cluster uses; *raftlog.Log in production.
type Log interface {
	Self() string
	Members() []raftlog.Member
	Leader() (raftlog.Member, bool)
	IsLeader() bool
	Term() uint64
	Applied() uint64
	Wait(ctx context.Context, index uint64) error
	LastContact() time.Time
	ReadIndex(ctx context.Context) (uint64, error)
	AddMember(ctx context.Context, id, address string) error
	Promote(ctx context.Context, id string) error
	RemoveMember(ctx context.Context, id string) error
	Transfer(ctx context.Context, id string) error
}

// State is the part of the state that it reads.
type State interface{ Latest() *state.Snapshot }

// Cluster is this server's side of the cluster. Its methods are safe for concurrent use once Attach was called.
type Cluster struct {
	cfg      Config
	identity *peers.Identity
	node     *peers.Node
	client   *http.Client

	// log, state and proposer are set by Attach, before Run.
	log      atomic.Pointer[attached]
	removed  chan struct{} // closed when another server says that this one was removed
	onRemove sync.Once

	// leaving has the addresses of servers that were removed and are being told, by id.
	leaving sync.Map

	mu sync.Mutex
	// heard is what the leader has heard from each server, by id; of this leadership.
	heard map[string]heard
}

// attached is what a Cluster gets after it was opened.
type attached struct {
	Log
	state    State
	proposer state.Proposer
}

// heard is the last answer of a server.
type heard struct {
	Status
	at  time.Time // zero: none yet
	err error     // of the last try
}

// Status is what a server says of itself to the others.
type Status struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Reads   int    `json:"reads"`
	API     string `json:"api,omitempty"`
	Term    uint64 `json:"term"`
	Applied uint64 `json:"applied"`
}

// Open makes this server a member, if it is none yet, and listens for the other servers. ctx bounds the
// joining.
func Open(ctx context.Context, c Config) (*Cluster, error) {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	identity, err := identify(ctx, &c)
	if err != nil {
		return nil, err
	}
	listen := cmp.Or(c.Spec.Listen, c.Spec.Address)
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("cluster.listen: the port for the other servers cannot be opened: %w", err)
	}
	out := &Cluster{cfg: c, identity: identity, removed: make(chan struct{}), heard: map[string]heard{}}
	out.node = peers.New(peers.Config{
		Identity: identity, Dir: c.DataDir + "/" + Dir, Listener: ln, Address: c.Spec.Address,
		Expected: out.expected, Refuse: out.refuse, Admit: out.admit, Logger: c.Logger,
	})
	out.client = &http.Client{Transport: out.Transport()}
	return out, nil
}

// Raft is the part of the log's configuration that makes it one of several.
func (c *Cluster) Raft() *raftlog.Cluster {
	return &raftlog.Cluster{
		Address: raft.ServerAddress(c.cfg.Spec.Address), Transport: raftlog.NewTransport(c.node.Log(), c.cfg.Logger),
		Term: func(ctx context.Context, m raftlog.Member) (uint64, error) {
			s, err := c.ask(ctx, m.ID)
			return s.Term, err
		},
	}
}

// Attach gives it the log, the state and a proposer of facts. It must be called before Run.
func (c *Cluster) Attach(log Log, s State, p state.Proposer) { c.log.Store(&attached{log, s, p}) }

// Close is for a Cluster that Run is never called on.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.node.Run(ctx)
}

// members are those of the log; nil while there is none.
func (c *Cluster) members() []raftlog.Member {
	if l := c.log.Load(); l != nil {
		return l.Members()
	}
	return nil
}

// member is the member of an id.
func (c *Cluster) member(id string) (raftlog.Member, bool) {
	for _, m := range c.members() {
		if m.ID == id {
			return m, true
		}
	}
	return raftlog.Member{}, false
}

// expected is the id of the server that the log has at an address.
func (c *Cluster) expected(address string) string {
	for _, m := range c.members() {
		if m.Address == address {
			return m.ID
		}
	}
	return ""
}

// refuse says why a server may not send messages of the log. A server that has no log yet, or knows no
// leader, takes them from every server of the cluster: it may have been off while the other one joined, and
// learns of it only by such messages. The log itself counts no votes of servers that it does not know.
func (c *Cluster) refuse(id string) error {
	l := c.log.Load()
	if l == nil || len(l.Members()) == 0 {
		return nil
	}
	if _, led := l.Leader(); !led {
		return nil
	}
	if _, ok := c.member(id); !ok {
		return fmt.Errorf("server %s is no member", id)
	}
	return nil
}

// Transport sends HTTP requests to the server whose id is the URL's host. It is a forward.Config.Transport.
func (c *Cluster) Transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, hostPort string) (net.Conn, error) {
			id, _, err := net.SplitHostPort(hostPort)
			if err != nil {
				return nil, err
			}
			m, ok := c.member(id)
			if at, left := c.leaving.Load(id); left && !ok {
				m, ok = at.(raftlog.Member), true
			}
			if !ok {
				return nil, forward.DialError(fmt.Errorf("server %s is no member of the cluster", id))
			}
			ctx, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			conn, err := c.node.DialHTTP(ctx, m.Address, id)
			if err != nil {
				return nil, forward.DialError(err)
			}
			return conn, nil
		},
		// Each request that waits or streams has a connection of its own.
		MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true, ExpectContinueTimeout: 10 * time.Second,
	}
}

// Paths between servers. All others are those of the API.
const (
	statusPath  = "/peer/status"
	removedPath = "/peer/removed"
)

// Handler answers the questions of other servers, and passes their other requests to the API's handler.
func (c *Cluster) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := peers.Server(r.Context())
		l := c.log.Load()
		if _, ok := c.member(from); l == nil || !ok && len(l.Members()) > 0 {
			// Its certificate is good: it was a member once, or is one that this server has not heard of yet.
			w.Header().Set(forward.NotLeading, "1")
			if l != nil {
				if _, led := l.Leader(); led {
					w.Header().Set(appliedHeader, strconv.FormatUint(l.Applied(), 10))
				}
			}
			http.Error(w, "no member of this cluster, as far as this server knows", http.StatusGone)
			return
		}
		switch r.URL.Path {
		case statusPath:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(c.status(l)) // whoever asked may have left
		case removedPath:
			c.cfg.Logger.Warn("another server says that this one was removed from the cluster", "by", from)
			c.onRemove.Do(func() { close(c.removed) })
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (c *Cluster) status(l *attached) Status {
	return Status{
		ID: l.Self(), Name: c.cfg.Spec.Name, Version: c.cfg.Version, Reads: c.cfg.Reads, API: c.cfg.API, Term: l.Term(), Applied: l.Applied(),
	}
}

// appliedHeader is in the answer to a server that is no member: up to where the answering server, which knows a
// leader, has the log.
const appliedHeader = "Muster-Applied"

// goneError says that another server does not know this one as a member.
type goneError struct {
	// applied is up to where it has the log; 0 if it knows no leader, so that it may be the one that lags.
	applied uint64
}

func (*goneError) Error() string { return "it does not know this server as a member" }

// ask asks a server for its state.
func (c *Cluster) ask(ctx context.Context, id string) (Status, error) {
	var s Status
	err := c.call(ctx, http.MethodGet, id, statusPath, &s)
	return s, err
}

// call sends one question to another server. answer may be nil.
func (c *Cluster) call(ctx context.Context, method, id, path string, answer any) error {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+id+path, nil)
	if err != nil {
		return err
	}
	res, err := c.client.Do(r)
	if err != nil {
		return reason(err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusGone:
		gone := &goneError{}
		gone.applied, _ = strconv.ParseUint(res.Header.Get(appliedHeader), 10, 64) // without it: 0
		return gone
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", res.Status)
	case answer == nil:
		return nil
	}
	return json.NewDecoder(io.LimitReader(res.Body, answerMost)).Decode(answer)
}

// reason is the error of a call without the URL around it, which says nothing to an operator.
func reason(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil || !strings.HasPrefix(err.Error(), "Get ") && !strings.HasPrefix(err.Error(), "Post ") {
			return err
		}
		err = inner
	}
}

// Run serves the other servers until ctx ends, or until this server was removed, with ErrRemoved. api answers
// what they pass on. It must end after the log: the log's messages go through it.
func (c *Cluster) Run(ctx context.Context, api http.Handler) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.node.Run(ctx) })
	server := &http.Server{
		Handler: c.Handler(api), ConnContext: peers.ConnContext, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(c.cfg.Logger.Handler(), slog.LevelDebug),
	}
	g.Go(func() error {
		if err := server.Serve(c.node.HTTP()); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			return fmt.Errorf("serve other servers: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	g.Go(func() error { return c.watchMembership(ctx) })
	return g.Wait()
}

// watchMembership ends with ErrRemoved when this server was removed. One that was off at that time finds no
// leader when it is back; it asks the others then.
func (c *Cluster) watchMembership(ctx context.Context) error {
	alone := time.Now()
	for {
		select {
		case <-c.removed:
			return ErrRemoved
		case <-ctx.Done():
			return nil
		case <-time.After(lookEvery):
		}
		l := c.log.Load()
		if _, ok := l.Leader(); ok {
			alone = time.Now()
			continue
		}
		if time.Since(alone) < orphanedFor {
			continue
		}
		for _, m := range l.Members() {
			if m.ID == l.Self() {
				continue
			}
			ask, cancel := context.WithTimeout(ctx, askTime)
			_, err := c.ask(ask, m.ID)
			cancel()
			// Only one that has all that this server has can know that it was removed.
			if gone := (*goneError)(nil); errors.As(err, &gone) && gone.applied > 0 && gone.applied >= l.Applied() {
				return ErrRemoved
			}
		}
		c.cfg.Logger.Warn("the cluster has no leader, as far as this server knows; a majority of the servers has to run and reach each other", "servers", len(l.Members()), "for", time.Since(alone).Round(time.Second))
		alone = time.Now()
	}
}

// Readable is the newest log format that every member reads; 0 if one has never said it.
func (c *Cluster) Readable() state.Format {
	l := c.log.Load()
	least := state.Format(c.cfg.Reads)
	snap := l.state.Latest()
	for _, m := range l.Members() {
		if m.ID == l.Self() {
			continue
		}
		row, ok := state.ServerOf(snap, m.ID)
		if !ok {
			return 0
		}
		least = min(least, row.Reads)
	}
	return least
}

// Self, Leader and the rest make a Cluster the forward.Servers of its server.
func (c *Cluster) Self() string { return c.log.Load().Self() }

// Leader is the id of the leader; empty if this server knows none.
func (c *Cluster) Leader() string {
	m, _ := c.log.Load().Leader()
	return m.ID
}

// ReadIndex returns when this server is known to lead and its state has all that was confirmed before.
func (c *Cluster) ReadIndex(ctx context.Context) error {
	l := c.log.Load()
	index, err := l.ReadIndex(ctx)
	if err != nil {
		return err
	}
	return l.Wait(ctx, index)
}

// Applied is the index of the newest entry that the state has.
func (c *Cluster) Applied() uint64 { return c.log.Load().Applied() }

// Wait blocks until the state has an entry.
func (c *Cluster) Wait(ctx context.Context, index uint64) error { return c.log.Load().Wait(ctx, index) }

// LastContact is when this server last heard from the leader.
func (c *Cluster) LastContact() time.Time { return c.log.Load().LastContact() }

// From is the id of the server that has passed a request on.
func (c *Cluster) From(ctx context.Context) string { return peers.Server(ctx) }

var _ forward.Servers = (*Cluster)(nil)
