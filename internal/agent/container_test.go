package agent

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// containers is a played runtime for allocations with an image.
type containers struct{ *played }

func (containers) RunsImages() {}

// shelf is a store with the images that it was given.
type shelf struct {
	grant func(ctx context.Context, ref string) (wire.PullGrant, error)

	mu       sync.Mutex
	images   map[string]contract.ImageConfig
	held     map[string]int
	failures map[string]*muster.Failure
	// pulling, if set, is waited for by each Open.
	pulling chan struct{}
	granted []wire.PullGrant
	pulls   int // calls of Pull
}

func newShelf() *shelf {
	return &shelf{images: map[string]contract.ImageConfig{}, held: map[string]int{}, failures: map[string]*muster.Failure{}}
}

func (s *shelf) Open(ctx context.Context, ref string, _ wire.Puller, tell func(contract.ImageProgress)) (*contract.Image, error) {
	g, err := s.grant(ctx, ref)
	if err != nil {
		return nil, err
	}
	tell(contract.ImageProgress{Done: 1 << 20, Total: 3 << 20, Layers: 2, LayersDone: 1})
	if s.pulling != nil {
		select {
		case <-s.pulling:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted = append(s.granted, g)
	if f := s.failures[ref]; f != nil {
		return nil, f
	}
	config, ok := s.images[ref]
	if !ok {
		return nil, contract.Failure(muster.FailureUser, muster.ReasonImageNotFound, "image %s: not found", ref)
	}
	return s.holdLocked("sha256:"+ref, ref, config), nil
}

func (s *shelf) Pull(ctx context.Context, ref string, _ wire.Puller, tell func(contract.ImageProgress)) (*contract.Image, error) {
	s.mu.Lock()
	s.pulls++
	s.mu.Unlock()
	return s.Open(ctx, ref, wire.Puller{}, tell)
}

func (s *shelf) holdLocked(digest, ref string, config contract.ImageConfig) *contract.Image {
	s.held[digest]++
	return &contract.Image{Ref: ref, Digest: digest, Config: config, Release: func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held[digest]--
	}}
}

func (s *shelf) Hold(digest string) (*contract.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holdLocked(digest, "", contract.ImageConfig{}), nil
}

func (s *shelf) holds(digest string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[digest]
}

func (s *shelf) List() wire.ImageList {
	return wire.ImageList{Images: []wire.Image{{Ref: "a"}}, Limit: 5}
}

func (s *shelf) Prune(_ context.Context, all bool) (muster.Bytes, error) {
	if all {
		return 7, nil
	}
	return 3, nil
}

// nets counts who has a network.
type nets struct {
	mu    sync.Mutex
	taken map[muster.AllocID]contract.NetworkSpec
	kept  []muster.AllocID
	fail  error
}

func (n *nets) Check(context.Context) ([]string, error) { return []string{"a firewall"}, nil }

func (n *nets) Take(_ context.Context, id muster.AllocID, s contract.NetworkSpec) (*contract.Network, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail != nil {
		return nil, n.fail
	}
	n.taken[id] = s
	return &contract.Network{Namespace: "/net/" + string(id)}, nil
}

func (n *nets) Release(_ context.Context, id muster.AllocID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.taken, id)
	return nil
}

func (n *nets) Restore(_ context.Context, keep []muster.AllocID) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept = keep
	return nil
}

func (n *nets) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (n *nets) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.taken)
}

// containerRig is an agent with images and networks, whose grants are all given.
func containerRig(t *testing.T, rt *played, dir string, images *shelf, networks *nets) *rig {
	t.Helper()
	r := newRig(t, rt, dir, func(c *Config) {
		c.Runtimes = []contract.Runtime{containers{rt}}
		c.Networks = networks
		c.Images = func(ways ImageWays) (contract.Images, error) {
			images.grant = ways.Grant
			return images, nil
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for report, err := range r.client.Reports(ctx) {
			if err != nil {
				return
			}
			for _, ref := range report.NeedGrants {
				r.put(t, wire.PullGrant{Ref: ref, Authorization: "Bearer " + ref})
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return r
}

// put hands over a grant as the server does.
func (r *rig) put(t *testing.T, g wire.PullGrant) {
	t.Helper()
	r.agent.grants.put(g)
}

func container(id muster.AllocID, image string, command ...string) wire.DesiredAlloc {
	d := run(id, command...)
	d.Spec.Image = image
	d.Spec.Job, d.Spec.Index = "my.job", 4
	return d
}

func TestContainer(t *testing.T) {
	rt, images, networks := newPlayed(), newShelf(), &nets{taken: map[muster.AllocID]contract.NetworkSpec{}}
	images.images["python:3.13"] = contract.ImageConfig{
		Entrypoint: []string{"wait"}, Cmd: []string{"unused"}, Env: []string{"PATH=/py:/bin", "A=image", "broken"}, User: "app",
		Workdir: "/app", StopSignal: "SIGINT", Volumes: []string{"/data"},
	}
	r := containerRig(t, rt, "", images, networks)
	d := container("u-0-1", "python:3.13", "x", "y")
	d.Spec.Env = map[string]string{"A": "job"}
	d.Spec.Egress, d.Spec.Ports = []string{"10.0.0.0/8"}, []int{80}
	d.Spec.PidsLimit, d.Spec.CPUMax = 7, 1500
	r.must(set(d))
	report := r.until("u-0-1", muster.AllocRunning)
	if report.Image != "sha256:python:3.13" || report.Detail != "" {
		t.Errorf("%+v", report)
	}
	if h, err := r.client.Hello(t.Context()); err != nil || h.Attributes[muster.AttributeContainers] != "played" {
		t.Errorf("%+v, %v", h, err)
	}
	c := rt.config("u-0-1")
	if !slices.Equal(c.Command, []string{"wait", "x", "y"}) || c.Work != "/app" || c.Limits != (contract.Limits{Pids: 7, CPUMax: 1500}) {
		t.Errorf("%+v", c)
	}
	for _, want := range []string{"PATH=/py:/bin", "A=job", "MUSTER_ALLOC=u-0-1"} {
		if !slices.Contains(c.Env, want) {
			t.Errorf("%s is not in %q", want, c.Env)
		}
	}
	for _, kv := range c.Env {
		if strings.HasPrefix(kv, "HOME=") || strings.HasPrefix(kv, "TMPDIR=") || kv == "broken" {
			t.Errorf("%s is the node's, or nobody's", kv)
		}
	}
	k := c.Container
	if k == nil || k.User != "app" || k.StopSignal != 2 || k.Hostname != "my-job-4" || k.Shared != "" || !slices.Equal(k.Volumes, []string{"/data"}) ||
		k.Network == nil || k.Network.Namespace != "/net/u-0-1" {
		t.Fatalf("%+v", k)
	}
	if s := networks.taken["u-0-1"]; !slices.Equal(s.Egress, []string{"10.0.0.0/8"}) || !slices.Equal(s.Ports, []int{80}) {
		t.Errorf("%+v", s)
	}
	if images.holds("sha256:python:3.13") != 1 || images.granted[0].Authorization != "Bearer python:3.13" {
		t.Errorf("held %d, granted %+v", images.holds("sha256:python:3.13"), images.granted)
	}

	// Another agent holds the image for it, and keeps its network.
	r.stop()
	again := newShelf()
	r = containerRig(t, rt, r.dir, again, networks)
	if !slices.Equal(networks.kept, []muster.AllocID{"u-0-1"}) || again.holds("sha256:python:3.13") != 1 {
		t.Errorf("kept %v, held %d", networks.kept, again.holds("sha256:python:3.13"))
	}
	rt.box("u-0-1").end(contract.Result{})
	if report := r.until("u-0-1", muster.AllocEnded); report.Image != "sha256:python:3.13" {
		t.Errorf("%+v", report)
	}
	r.eventually("image and network are let go", func() bool { return again.holds("sha256:python:3.13") == 0 && networks.count() == 0 })
}

func TestContainerThatCannotStart(t *testing.T) {
	rt, images, networks := newPlayed(), newShelf(), &nets{taken: map[muster.AllocID]contract.NetworkSpec{}}
	images.images["plain"] = contract.ImageConfig{}
	images.images["relative"] = contract.ImageConfig{Workdir: "here", Cmd: []string{"exit", "0"}}
	images.images["signal"] = contract.ImageConfig{StopSignal: "SIGNONE", Cmd: []string{"exit", "0"}}
	images.failures["away"] = contract.Failure(muster.FailureOutside, muster.ReasonImage, "image away: 503")
	r := containerRig(t, rt, "", images, networks)
	for name, test := range map[string]struct {
		image   string
		command []string
		want    muster.Failure
	}{
		"u-0-1": {"gone", []string{"wait"}, muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImageNotFound, Message: "gone"}},
		"u-1-1": {"plain", nil, muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonSpec, Message: "no command of its own"}},
		"u-2-1": {"relative", nil, muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImage, Message: `"here"`}},
		"u-3-1": {"signal", nil, muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonImage, Message: "SIGNONE"}},
		"u-4-1": {"away", []string{"wait"}, muster.Failure{Class: muster.FailureOutside, Reason: muster.ReasonImage, Message: "503"}},
		"u-5-1": {"plain", []string{"refuse"}, muster.Failure{Class: muster.FailureUser, Reason: muster.ReasonCommandNotFound, Message: "refuse"}},
	} {
		id := muster.AllocID(name)
		r.must(set(container(id, test.image, test.command...)))
		got := r.until(id, muster.AllocEnded).Failure
		if got == nil || got.Class != test.want.Class || got.Reason != test.want.Reason || !strings.Contains(got.Message, test.want.Message) {
			t.Errorf("%s: %+v, want %+v", test.image, got, test.want)
		}
	}
	networks.fail = errors.New("no bridge")
	r.must(set(container("u-6-1", "plain", "wait")))
	if got := r.until("u-6-1", muster.AllocEnded).Failure; got == nil || got.Class != muster.FailureNode || !strings.Contains(got.Message, "no bridge") {
		t.Errorf("%+v", got)
	}
	r.eventually("nothing is held", func() bool { return images.holds("sha256:plain") == 0 && networks.count() == 0 })
}

// TestStoppedWhilePulling: a pull nobody waits for any more ends, and its allocation was stopped.
func TestStoppedWhilePulling(t *testing.T) {
	rt, images := newPlayed(), newShelf()
	images.pulling = make(chan struct{})
	r := containerRig(t, rt, "", images, &nets{taken: map[muster.AllocID]contract.NetworkSpec{}})
	d := container("u-0-1", "big", "wait")
	r.must(set(d))
	r.eventually("the pull is told of", func() bool {
		return r.until("u-0-1", muster.AllocStarting).Detail == "pulling image big: 1MiB of 3MiB, 1 of 2 layers"
	})
	d.Desired = muster.AllocStop
	r.must(set(d))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeStopped {
		t.Errorf("%+v", got)
	}
}

// TestGrantIsAskedForAgain: the server is asked once for what many wait for, and once more by
// whoever comes back: what it gave was refused.
func TestGrantIsAskedForAgain(t *testing.T) {
	added := 0
	g := newGrants(func() { added++ })
	answers := make(chan wire.PullGrant, 3)
	for range 3 {
		go func() {
			got, err := g.get(t.Context(), "r")
			if err != nil {
				t.Error(err)
			}
			answers <- got
		}()
	}
	waiting := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		if w := g.asked["r"]; w != nil {
			return w.waiters
		}
		return 0
	}
	for waiting() != 3 {
		time.Sleep(time.Millisecond)
	}
	if needs := g.needs(); !slices.Equal(needs, []string{"r"}) {
		t.Errorf("needs %v", needs)
	}
	g.put(wire.PullGrant{Ref: "r", Authorization: "one", Until: muster.At(time.Now().Add(time.Hour))})
	for range 3 {
		if got := <-answers; got.Authorization != "one" {
			t.Errorf("%+v", got)
		}
	}
	if added != 1 || len(g.needs()) != 0 {
		t.Errorf("asked %d times, needs %v", added, g.needs())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := g.get(ctx, "r"); err == nil || added != 2 {
		t.Errorf("a grant that was refused was used again: %+v, asked %d times", got, added)
	}
	go func() {
		got, err := g.get(t.Context(), "r")
		if err != nil {
			t.Error(err)
		}
		answers <- got
	}()
	for waiting() != 1 {
		time.Sleep(time.Millisecond)
	}
	g.put(wire.PullGrant{Ref: "r", Authorization: "two"})
	if got := <-answers; got.Authorization != "two" || got.Until == 0 || added != 3 {
		t.Errorf("%+v, asked %d times", got, added)
	}
	g.put(wire.PullGrant{Ref: "r", Failure: contract.Failure(muster.FailureUser, muster.ReasonImageNotFound, "no")})
	if len(g.needs()) != 0 {
		t.Errorf("needs %v", g.needs())
	}
}

// TestTunnel: bytes go both ways, and each side's end is the other's.
func TestTunnel(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait")))
	r.until("u-0-1", muster.AllocRunning)
	conn, err := journal.Dialer(r.dir)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /v1/allocs/u-0-1/init HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: muster-init\r\n\r\nearly ")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	_, _ = io.WriteString(conn, "and late")
	got := make([]byte, len("early and late"))
	if _, err := io.ReadFull(in, got); err != nil || string(got) != "early and late" {
		t.Errorf("%q, %v", got, err)
	}
	// The agent ends: so does the tunnel.
	r.stop()
	if _, err := in.ReadByte(); err == nil {
		t.Error("the tunnel outlives its agent")
	}
}

// TestTunnelHandedOver: a server on this machine gets the connection to init itself. The agent knows that the sandbox is
// used until the server has left.
func TestTunnelHandedOver(t *testing.T) {
	rt := newPlayed()
	rt.local = true
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait")))
	r.until("u-0-1", muster.AllocRunning)
	uses := func() int {
		r.agent.mu.Lock()
		al := r.agent.allocs["u-0-1"]
		r.agent.mu.Unlock()
		al.mu.Lock()
		defer al.mu.Unlock()
		return al.awake
	}
	open := func() *wire.Tunnel {
		tunnel, err := r.client.Tunnel(t.Context(), "u-0-1", []byte("early "))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(tunnel, "and late")
		got := make([]byte, len("early and late"))
		if _, err := io.ReadFull(tunnel, got); err != nil || string(got) != "early and late" {
			t.Errorf("%q, %v", got, err)
		}
		return tunnel
	}
	tunnel := open()
	if n := uses(); n != 1 {
		t.Errorf("%d use it", n)
	}
	_ = tunnel.Close()
	r.eventually("nobody uses it", func() bool { return uses() == 0 })
	// The agent ends: so does the tunnel.
	tunnel = open()
	defer func() { _ = tunnel.Close() }()
	r.stop()
	if _, err := tunnel.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "the agent has ended") {
		t.Errorf("without its agent: %v", err)
	}
}

// TestTunnelLarge: what is sent first arrives as a whole where the connection is handed over, however much it is.
func TestTunnelLarge(t *testing.T) {
	rt := newPlayed()
	rt.local = true
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait")))
	r.until("u-0-1", muster.AllocRunning)
	first := bytes.Repeat([]byte("much "), 20_000)
	tunnel, err := r.client.Tunnel(t.Context(), "u-0-1", first)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tunnel.Close() }()
	_, _ = io.WriteString(tunnel, "and more")
	got := make([]byte, len(first)+len("and more"))
	if n, err := io.ReadFull(tunnel, got); err != nil || string(got) != string(first)+"and more" {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// TestTunnelHalfClosed: who has sent all and says so is answered, also where bytes go through the agent.
func TestTunnelHalfClosed(t *testing.T) {
	rt := newPlayed()
	rt.local = true
	rt.init = func(conn net.Conn) {
		b, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(b))
		_ = conn.Close()
	}
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "wait")))
	r.until("u-0-1", muster.AllocRunning)
	conn, err := journal.Dialer(r.dir)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /v1/allocs/u-0-1/init HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: muster-init\r\nContent-Length: 6\r\n\r\nearly ")
	in := bufio.NewReader(conn)
	if resp, err := http.ReadResponse(in, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", resp, err)
	}
	_, _ = io.WriteString(conn, "and late")
	_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	if b, err := io.ReadAll(in); err != nil || string(b) != "EARLY AND LATE" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestTunnelRefused(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(run("u-0-1", "exit", "0"), run("u-1-1", "wait")))
	r.until("u-0-1", muster.AllocEnded)
	r.until("u-1-1", muster.AllocRunning)
	client := &http.Client{Transport: &http.Transport{DialContext: dialContext(r.dir), DisableKeepAlives: true}}
	for path, want := range map[string]int{"u-0-1/init": 410, "u-1-1/init": 426, "u-2-1/init": 404, "u-0-1/stats": 410, "u-1-1/stats": 200} {
		method := http.MethodPost
		if strings.HasSuffix(path, "stats") {
			method = http.MethodGet
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://agent/v1/allocs/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(path, "u-1-1/init") {
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", wire.UpgradeInit)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d %s, want %d", path, resp.StatusCode, body, want)
		}
	}
}

func dialContext(dir string) func(context.Context, string, string) (net.Conn, error) {
	dial := journal.Dialer(dir)
	return func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
}

// The first image of a new version of a job is asked for at its registry, once on each node; where that cannot say, what
// is known of the tag will do.
func TestNewVersionAsksForItsTag(t *testing.T) {
	s := newShelf()
	s.images["a:latest"] = contract.ImageConfig{}
	s.grant = func(context.Context, string) (wire.PullGrant, error) { return wire.PullGrant{}, nil }
	n := &node{images: s}
	for i, c := range []struct {
		job     muster.JobUID
		version uint64
		pulls   int
	}{{"u", 1, 0}, {"u", 1, 0}, {"u", 2, 1}, {"u", 2, 1}, {"v", 9, 1}, {"u", 1, 1}, {"u", 2, 1}, {"u", 4, 2}} {
		image, err := n.newestImage(t.Context(), &wire.AllocSpec{JobUID: c.job, Version: c.version, Template: api.Template{Image: "a:latest"}}, func(contract.ImageProgress) {})
		if err != nil || s.pulls != c.pulls {
			t.Errorf("%d: %d pulls, want %d; %v", i, s.pulls, c.pulls, err)
		}
		image.Free()
	}
	s.failures["a:latest"] = contract.Failure(muster.FailureOutside, muster.ReasonImage, "no registry")
	if _, err := n.newestImage(t.Context(), &wire.AllocSpec{JobUID: "u", Version: 5, Template: api.Template{Image: "a:latest"}}, func(contract.ImageProgress) {}); err == nil || s.pulls != 3 {
		t.Errorf("%v after %d pulls", err, s.pulls)
	}
}
