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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hashicorp/raft"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/forward"
	"github.com/musterhq/muster/internal/peers"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/state"
	"github.com/musterhq/muster/internal/wait"
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
var ErrRemoved = errors.New("this server was removed from its cluster; its data directory has nothing that the others lack and can be deleted")

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

// refuse says why a server may not send messages of the log. A server that has no log yet takes them from
// every server of the cluster.
func (c *Cluster) refuse(id string) error {
	if len(c.members()) == 0 {
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
			// Its certificate is good: it was a member once.
			http.Error(w, "no member of this cluster", http.StatusGone)
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

// errGone says that another server does not know this one as a member.
var errGone = errors.New("it does not know this server as a member")

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
		return errGone
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
			if errors.Is(err, errGone) {
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
		row, ok := snap.Server(m.ID)
		if !ok {
			return 0
		}
		least = min(least, row.Reads)
	}
	return least
}

// NewToken makes a join token, good for TokenLife.
func (c *Cluster) NewToken() (api.JoinToken, error) {
	end := time.Now().Add(TokenLife)
	token, err := c.identity.NewToken(end)
	return api.JoinToken{Token: token.Reveal(), Expires: end.UTC().Truncate(time.Second), Address: c.cfg.Spec.Address}, err
}

// find is the member that an operator means by a name or an id.
func (c *Cluster) find(name string) (raftlog.Member, state.Server, error) {
	l := c.log.Load()
	snap := l.state.Latest()
	for _, m := range l.Members() {
		row, _ := snap.Server(m.ID)
		if m.ID == name || row.Name == name && name != "" {
			return m, row, nil
		}
	}
	return raftlog.Member{}, state.Server{}, muster.Faultf(muster.FaultNotFound, "server %s: the cluster has none of this name; `muster servers list` shows all", name)
}

// List is all servers, by name.
func (c *Cluster) List() api.ServerList {
	l := c.log.Load()
	snap := l.state.Latest()
	meta := snap.Meta()
	out := api.ServerList{Format: int(meta.LogFormat()), Reads: int(c.Readable())}
	leader, _ := l.Leader()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range l.Members() {
		row, _ := snap.Server(m.ID)
		s := api.ServerMember{
			ID: m.ID, Name: row.Name, Role: api.RoleLearner, Address: m.Address, API: row.API, Version: row.Version, Reads: int(row.Reads),
		}
		switch {
		case m.ID == leader.ID:
			s.Role = api.RoleLeader
		case m.Votes:
			s.Role = api.RoleVoter
		}
		if h, ok := c.heard[m.ID]; ok && m.ID != l.Self() {
			s.Applied = h.Applied
			if !h.at.IsZero() {
				at := h.at.UTC()
				s.Heard = &at
			}
			if h.err != nil {
				s.Problem = h.err.Error()
			}
		}
		if m.ID == l.Self() {
			own := c.status(l)
			now := time.Now().UTC()
			s.Name, s.Version, s.Reads, s.API, s.Applied, s.Heard = own.Name, own.Version, own.Reads, own.API, own.Applied, &now
		}
		out.Servers = append(out.Servers, s)
	}
	slices.SortFunc(out.Servers, func(a, b api.ServerMember) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// errNotLeading is for changes that only the leader can make.
func errNotLeading() error {
	return &muster.Fault{Kind: muster.FaultUnavailable, Message: "this server does not lead the cluster", After: time.Second}
}

// Transfer hands leadership to a server.
func (c *Cluster) Transfer(ctx context.Context, name string) error {
	l := c.log.Load()
	m, _, err := c.find(name)
	switch {
	case err != nil:
		return err
	case !l.IsLeader():
		return errNotLeading()
	case m.ID == l.Self():
		return nil
	case !m.Votes:
		return muster.Faultf(muster.FaultConflict, "server %s is a learner: it cannot lead before it has caught up and votes", name)
	case !c.alive(m.ID):
		return muster.Faultf(muster.FaultConflict, "server %s does not answer, so it cannot lead", name)
	}
	return fault(l.Transfer(ctx, m.ID))
}

// HandOver gives leadership to one of the others that answers, if there is one: for a leader that stops.
func (c *Cluster) HandOver(ctx context.Context) {
	l := c.log.Load()
	if !l.IsLeader() {
		return
	}
	var best raftlog.Member
	var most uint64
	c.mu.Lock()
	for _, m := range l.Members() {
		if h := c.heard[m.ID]; m.ID != l.Self() && m.Votes && h.err == nil && !h.at.IsZero() && h.Applied >= most {
			best, most = m, h.Applied
		}
	}
	c.mu.Unlock()
	if best.ID == "" {
		return
	}
	if err := l.Transfer(ctx, best.ID); err != nil {
		c.cfg.Logger.Info("leadership was not handed over; the others elect a leader when they miss this one", "error", err)
	}
}

// alive reports whether a server answered the leader lately.
func (c *Cluster) alive(id string) bool {
	if id == c.log.Load().Self() {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h, ok := c.heard[id]
	return ok && time.Since(h.at) < aliveFor
}

// Remove takes a server out of the cluster. It is refused if fewer than a majority of those that stay answer.
func (c *Cluster) Remove(ctx context.Context, name string) error {
	l := c.log.Load()
	m, _, err := c.find(name)
	if err != nil {
		return err
	}
	if !l.IsLeader() {
		return errNotLeading()
	}
	voters, answering := 0, 0
	for _, other := range l.Members() {
		if other.ID == m.ID || !other.Votes {
			continue
		}
		voters++
		if c.alive(other.ID) {
			answering++
		}
	}
	switch {
	case voters == 0 && m.Votes:
		return muster.Faultf(muster.FaultConflict, "server %s is the only one of the cluster that votes; it cannot be removed", name)
	case m.Votes && answering <= voters/2:
		return muster.Faultf(muster.FaultConflict, "without server %s, %d servers would vote and only %d of them answer, which is no majority; start the others first", name, voters, answering)
	}
	c.leaving.Store(m.ID, m)
	defer c.leaving.Delete(m.ID)
	if err := fault(l.RemoveMember(ctx, m.ID)); err != nil {
		return err
	}
	c.cfg.Logger.Info("server removed from the cluster", "server", m.ID, "name", name)
	if m.ID == l.Self() {
		c.onRemove.Do(func() { close(c.removed) })
		return nil
	}
	// It is told, if it runs, so that it can end with a sentence. One that is off finds out at its next start.
	tell, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := c.call(tell, http.MethodPost, m.ID, removedPath, nil); err != nil {
		c.cfg.Logger.Debug("the removed server was not told", "server", m.ID, "error", err)
	}
	c.node.Drop(m.ID)
	if _, _, err := l.proposer.Propose(ctx, &state.ServerRemoved{ID: m.ID}); err != nil {
		c.cfg.Logger.Warn("the removed server is still in the list of names; the leader removes it later", "server", m.ID, "error", err)
	}
	return nil
}

// fault gives the errors of the log their kinds.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raftlog.ErrNotLeader):
		return errNotLeading()
	case errors.Is(err, raftlog.ErrAmbiguous):
		return &muster.Fault{Kind: muster.FaultAmbiguous, Err: err}
	}
	return &muster.Fault{Kind: muster.FaultConflict, Err: err}
}

// admit decides about a server that wants to join. Only the leader can admit one; others say who leads.
func (c *Cluster) admit(ctx context.Context, r *peers.JoinRequest) (*peers.Admission, error) {
	l := c.log.Load()
	if l == nil {
		return nil, errors.New("it is starting; try again")
	}
	if !l.IsLeader() {
		leader, ok := l.Leader()
		if !ok || leader.ID == l.Self() {
			return nil, errors.New("the cluster has no leader now; try again when a majority of its servers runs")
		}
		return &peers.Admission{Elsewhere: leader.Address}, nil
	}
	snap := l.state.Latest()
	meta := snap.Meta()
	if has := int(meta.LogFormat()); r.Reads < has {
		return nil, fmt.Errorf("it reads log format %d at most, and the cluster has format %d; join with version %s or a newer one", r.Reads, has, cmp.Or(meta.FormatBy, c.cfg.Version))
	}
	if meta.LogFormat() < state.FormatServers {
		return nil, fmt.Errorf("the cluster still has log format %d and cannot take others before it has %d; wait until it leads, or upgrade its servers", meta.LogFormat(), state.FormatServers)
	}
	if r.Name == "" || len(r.Name) > 60 || strings.ContainsFunc(r.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("its name %q is no name: 1 to 60 visible ASCII characters without spaces", r.Name)
	}
	members := l.Members()
	if _, known := c.member(r.Server); !known && len(members) >= MaxMembers {
		return nil, fmt.Errorf("the cluster has %d servers, which is the most", len(members))
	}
	for _, m := range members {
		if m.ID == r.Server {
			continue
		}
		row, _ := snap.Server(m.ID)
		if row.Name == r.Name {
			return nil, fmt.Errorf("the cluster has another server of the name %s; choose another cluster.name, or remove that one first (`muster servers remove %s`)", r.Name, r.Name)
		}
		if m.Address == r.Address {
			return nil, fmt.Errorf("server %s has the address %s; give this one its own cluster.address, or remove that one first (`muster servers remove %s`)", cmp.Or(row.Name, m.ID), r.Address, cmp.Or(row.Name, m.ID))
		}
	}
	secrets, err := c.cfg.Secrets()
	if err != nil {
		return nil, fmt.Errorf("its secrets cannot be read: %w", err)
	}
	// The name is taken first. Without the member it is forgotten again by the leader.
	if _, _, err := l.proposer.Propose(ctx, &state.ServerSeen{Server: state.Server{ID: r.Server, Name: r.Name, Version: r.Version, Reads: state.Format(r.Reads)}}); err != nil {
		return nil, err
	}
	if err := l.AddMember(ctx, r.Server, r.Address); err != nil {
		return nil, err
	}
	c.cfg.Logger.Info("server admitted to the cluster; it votes when it has the log", "server", r.Server, "name", r.Name, "address", r.Address)
	return &peers.Admission{Secrets: secrets}, nil
}

// Lead does what the leader does for the cluster, until ctx ends: it asks the other servers for their state,
// records it, promotes those that have caught up, and calls changed after a record has changed, which may let
// the log format be raised.
func (c *Cluster) Lead(ctx context.Context, changed func(context.Context) error) error {
	l := c.log.Load()
	c.mu.Lock()
	c.heard = map[string]heard{}
	c.mu.Unlock()
	for before := uint64(0); ; {
		applied := l.Applied()
		dirty := c.record(ctx, l, c.status(l))
		for id, s := range c.askAll(ctx, l) {
			if s.err != nil {
				continue
			}
			dirty = c.record(ctx, l, s.Status) || dirty
			// It has what this server had a round ago, so it keeps up.
			if m, ok := c.member(id); ok && !m.Votes && before > 0 && s.Applied >= before {
				if err := l.Promote(ctx, id); err != nil {
					c.cfg.Logger.Warn("a server that has caught up could not be given its vote; it is tried again", "server", id, "error", err)
				} else {
					c.cfg.Logger.Info("server votes now", "server", id, "name", s.Name)
				}
			}
		}
		dirty = c.forget(ctx, l) || dirty
		if dirty && ctx.Err() == nil {
			if err := changed(ctx); err != nil && ctx.Err() == nil {
				c.cfg.Logger.Warn("the log format could not be raised; it is tried again", "error", err)
			}
		}
		before = applied
		if !wait.For(ctx, lookEvery) {
			return nil
		}
	}
}

// askAll asks all other members at once and notes their answers.
func (c *Cluster) askAll(ctx context.Context, l *attached) map[string]heard {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range l.Members() {
		if m.ID == l.Self() {
			continue
		}
		wg.Go(func() {
			s, err := c.ask(ctx, m.ID)
			if err == nil && s.ID != m.ID {
				err = fmt.Errorf("it says that it is server %s", s.ID)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			h := c.heard[m.ID]
			if h.err = err; err == nil {
				h = heard{Status: s, at: time.Now()}
			}
			c.heard[m.ID] = h
		})
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]heard{}
	for id, h := range c.heard {
		out[id] = h
	}
	return out
}

// record writes what a server says of itself, if it has changed. Before the log has the format for it,
// nothing is written: a server alone needs no record of itself.
func (c *Cluster) record(ctx context.Context, l *attached, s Status) (changed bool) {
	snap := l.state.Latest()
	meta := snap.Meta()
	row, _ := snap.Server(s.ID)
	next := state.Server{ID: s.ID, Name: s.Name, Version: s.Version, Reads: state.Format(s.Reads), API: s.API}
	if row == next || meta.LogFormat() < state.FormatServers {
		return false
	}
	if _, _, err := l.proposer.Propose(ctx, &state.ServerSeen{Server: next}); err != nil {
		if ctx.Err() == nil {
			c.cfg.Logger.Warn("what a server says of itself could not be recorded", "server", s.ID, "name", s.Name, "error", err)
		}
		return false
	}
	return true
}

// forget removes the records of servers that are no members.
func (c *Cluster) forget(ctx context.Context, l *attached) (changed bool) {
	for _, row := range l.state.Latest().Servers() {
		if _, ok := c.member(row.ID); ok || len(l.Members()) == 0 {
			continue
		}
		if _, _, err := l.proposer.Propose(ctx, &state.ServerRemoved{ID: row.ID}); err == nil {
			changed = true
		}
		c.mu.Lock()
		delete(c.heard, row.ID)
		c.mu.Unlock()
	}
	return changed
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
