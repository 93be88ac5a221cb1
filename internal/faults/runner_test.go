package faults

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/imagetest"
)

// Runners in containers, under what goes wrong in life. The cases are those of the list of runner cases, by number.

// runnerHost is a started host with environment e, of which so many runners are kept warm.
func runnerHost(t *testing.T, warm int, edit ...func(*api.EnvironmentSpec)) *host {
	t.Helper()
	h, image := newContainerHost(t)
	h.start()
	h.environment("e", image, warm, edit...)
	h.warm("e", warm)
	return h
}

func (h *host) environment(name, image string, warm int, edit ...func(*api.EnvironmentSpec)) {
	h.t.Helper()
	s := api.EnvironmentSpec{Name: name, Template: api.Template{Image: image, Resources: api.ResourcesSpec{CPU: 0.05, Memory: 48 << 20, Pids: 64}}, Warm: api.WarmSpec{Min: &warm, Target: &warm}}
	for _, e := range edit {
		e(&s)
	}
	must(h.client().SetEnvironment(h.t.Context(), api.EnvironmentSetting{Spec: s}))(h.t)
}

func (h *host) counts(name string) api.RunnerCounts {
	h.t.Helper()
	return must(h.client().Environment(h.t.Context(), "default", name))(h.t).Runners
}

func (h *host) warm(name string, n int) {
	h.t.Helper()
	h.eventually(fmt.Sprintf("%d runners of %s are warm", n, name), func() bool {
		c := h.counts(name)
		if sum := c.Starting + c.Warm + c.Claimed + c.Gone; sum != c.Created {
			h.t.Fatalf("runners do not add up: %+v", c)
		}
		return c.Warm == n && c.Starting == 0
	})
}

func (h *host) claim(q api.ClaimRequest) api.Alloc {
	h.t.Helper()
	if q.Environment == "" {
		q.Environment = "e"
	}
	q.Wait = api.Duration(patience)
	c := must(h.client().Claim(h.t.Context(), q, ""))(h.t)
	return api.Alloc{ID: c.Runner, Node: c.Node}
}

// instanceOf is the directory of the instance that a runner is on.
func (h *host) instanceOf(a api.Alloc) string {
	h.t.Helper()
	return filepath.Join(h.instances(), must(h.client().Node(h.t.Context(), muster.NodeID(a.Node)))(h.t).Instance)
}

// runner as it stands now.
func (h *host) runner(a api.Alloc) *api.Runner {
	h.t.Helper()
	return must(h.client().Runner(h.t.Context(), muster.AllocID(a.ID)))(h.t)
}

// endRunners gives everything back, and fails the test if anything is left.
func (h *host) endRunners() {
	h.t.Helper()
	for e, err := range h.client().Environments(h.t.Context(), "") {
		if err != nil {
			h.t.Fatal(err)
		}
		if err := h.client().DeleteEnvironment(h.t.Context(), e.Namespace, e.Name, true); err != nil {
			h.t.Fatal(err)
		}
	}
	h.nothingLeft()
}

// execute runs a command in a runner to its end.
func (h *host) execute(a api.Alloc, q api.ExecRequest) *api.ExecResult {
	h.t.Helper()
	return must(h.client().RunExec(h.t.Context(), muster.AllocID(a.ID), q))(h.t)
}

// standsStill reports whether the kernel says that a runner's cgroup is frozen.
func (h *host) standsStill(instance, id string) bool {
	h.t.Helper()
	for _, root := range cgroupRoots(readFile(h.t, "/proc/self/mountinfo")) {
		for file, says := range map[string]string{"freezer.state": "FROZEN", "cgroup.events": "frozen 1"} {
			found, _ := filepath.Glob(filepath.Join(root, "muster", filepath.Base(instance), "*"+id, file))
			for _, at := range found {
				if b, err := os.ReadFile(at); err == nil && strings.Contains(string(b), says) {
					return true
				}
			}
		}
	}
	return false
}

// What a holder does with a runner: commands, files, and the bounds of both.
func TestRunnerUsed(t *testing.T) {
	t.Parallel()
	h := runnerHost(t, 2, func(s *api.EnvironmentSpec) {
		s.Frozen = true
		s.Ready = &api.ReadySpec{Command: []string{"test", "-d", "/proc/self"}}
		s.Isolation = string(muster.IsolationContainer)
	})
	a := h.claim(api.ClaimRequest{})
	id := muster.AllocID(a.ID)
	ctx := t.Context()

	t.Run("Frozen", func(t *testing.T) {
		h.warm("e", 2)
		cl, instance := h.client(), h.instanceOf(a)
		h.eventually("warm runners stand still, and the claimed one does not", func() bool {
			stand, on := 0, 0
			for r, err := range cl.Runners(ctx, client.RunnerQuery{}) {
				if err != nil {
					t.Fatal(err)
				}
				switch still := h.standsStill(instance, r.ID); {
				case r.State == string(muster.RunnerWarm) && still:
					stand++
				case r.State == string(muster.RunnerClaimed) && !still:
					on++
				}
			}
			return stand == 2 && on == 1
		})
	})
	t.Run("IsolationIsDemanded", func(t *testing.T) {
		h.environment("strict", h.archive("strict", imagetest.Busybox(t)), 1, func(s *api.EnvironmentSpec) { s.Isolation = "runsc" })
		cl := h.client()
		h.eventually("it says what it waits for", func() bool {
			e := must(cl.Environment(ctx, "default", "strict"))(t)
			return e.Unplaced == 1 && strings.Contains(e.Waits, "isolation = runsc")
		})
		if e := must(h.client().Environment(ctx, "default", "strict"))(t); e.Runners.Created != 0 {
			t.Errorf("with less than is demanded there are %+v", e.Runners)
		}
		if err := h.client().DeleteEnvironment(ctx, "default", "strict", true); err != nil {
			t.Error(err)
		}
	})

	t.Run("R8Output", func(t *testing.T) {
		got := h.execute(a, api.ExecRequest{Command: []string{"echo", "hi"}})
		if got.Stdout != "hi\n" || got.Stderr != "" || got.ExitCode != 0 {
			t.Errorf("%+v", got)
		}
		got = h.execute(a, api.ExecRequest{Command: []string{"sh", "-c", "printf '\\000\\377'; echo err >&2; exit 7"}})
		if string(got.StdoutBase64) != "\x00\xff" || got.Stderr != "err\n" || got.ExitCode != 7 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("R8Large", func(t *testing.T) { h.largeOutput(t, a) })
	t.Run("R9ExecutionIDs", func(t *testing.T) {
		h.detach(a, "once", "exit 3")
		_, err := h.client().StartExec(ctx, id, api.ExecRequest{ID: "once", Detach: true, Command: []string{"true"}})
		if client.Code(err) != string(muster.FaultAlreadyExists) {
			t.Errorf("an id used twice: %v", err)
		}
		if _, err := h.client().Attach(ctx, id, api.ExecAttach{Attach: "never"}); client.Code(err) != string(muster.FaultNotFound) {
			t.Errorf("an unknown id, joined: %v", err)
		}
		if _, err := h.client().Execution(ctx, id, "never"); client.Code(err) != string(muster.FaultNotFound) {
			t.Errorf("an unknown id, looked at: %v", err)
		}
	})
	t.Run("R10TimeLimit", func(t *testing.T) {
		began := time.Now()
		got := h.execute(a, api.ExecRequest{Command: []string{"sleep", "10"}, Timeout: api.Duration(time.Second)})
		if took := time.Since(began); !got.TimedOut || took < time.Second || took > 4*time.Second {
			t.Errorf("after %s: %+v", took, got)
		}
		// One that does not heed TERM is killed after its grace.
		got = h.execute(a, api.ExecRequest{Command: []string{"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"},
			Timeout: api.Duration(200 * time.Millisecond), KillGrace: api.Duration(300 * time.Millisecond)})
		if !got.TimedOut || got.Signal != "SIGKILL" {
			t.Errorf("%+v", got)
		}
		if got := h.execute(a, api.ExecRequest{Command: []string{"echo", "usable"}}); got.Stdout != "usable\n" {
			t.Errorf("%+v", got)
		}
	})
	t.Run("R13Exactly", func(t *testing.T) {
		words := []string{"a b", `"`, `'`, "$HOME", "`id`", "line\nline", "ümläut 🙂", `\`, "*", "", "-n"}
		got := h.execute(a, api.ExecRequest{Command: append([]string{"printf", "[%s]"}, words...)})
		if want := "[" + strings.Join(words, "][") + "]"; got.Stdout != want {
			t.Errorf("%q, want %q", got.Stdout, want)
		}
		got = h.execute(a, api.ExecRequest{Command: []string{"sh", "-c", `printf %s "$WORDS"`}, Env: map[string]string{"WORDS": " two  words $X\n"}})
		if got.Stdout != " two  words $X\n" {
			t.Errorf("%q", got.Stdout)
		}
	})
	t.Run("R14Files", func(t *testing.T) {
		data := "\x00\xff binary\r\n"
		open := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(data)), nil }
		must(h.client().WriteFile(ctx, id, client.FileWrite{Path: "/made/for/it", Parents: true}, int64(len(data)), open))(t)
		if got := readAll(t, must(h.client().ReadFile(ctx, id, "/made/for/it", 0))(t)); got != data {
			t.Errorf("%q", got)
		}
		change := api.FileChange{Delete: []string{"/made"}}
		for i := range 10 {
			change.Write = append(change.Write, api.FileContent{Path: fmt.Sprintf("/made/%d", i), Content: fmt.Sprint(i)})
		}
		change.Write[6].Path = "/sys/kernel/six"
		err := h.client().ChangeFiles(ctx, id, change)
		var p *api.Problem
		if !errors.As(err, &p) || len(p.Errors) != 1 || p.Errors[0].Value != "/sys/kernel/six" {
			t.Errorf("one of ten is forbidden: %v", err)
		}
		if got := h.inside(a, "sh", "-c", "ls /made | wc -l; cat /made/9"); got != "9\n9" {
			t.Errorf("%q", got)
		}
	})
	t.Run("R15Lists", func(t *testing.T) {
		h.inside(a, "sh", "-c", "mkdir -p /tree/sub && echo x >/tree/sub/f && ln -s sub/f /tree/link && ln -s /nowhere /tree/dead")
		flat := must(h.client().ListFiles(ctx, id, "/tree", false, 0))(t)
		all := must(h.client().ListFiles(ctx, id, "/tree", true, 0))(t)
		targets := map[string]string{}
		for _, e := range all.Entries {
			targets[e.Path] = e.Target
		}
		if len(flat.Entries) != 3 || len(all.Entries) != 4 || targets["/tree/link"] != "sub/f" || targets["/tree/dead"] != "/nowhere" {
			t.Errorf("%+v\n%+v", flat, all)
		}
		if _, err := h.client().ListFiles(ctx, id, "/tree/none", false, 0); client.Code(err) != string(muster.FaultNotFound) || !strings.Contains(err.Error(), "/tree/none") {
			t.Errorf("a missing path: %v", err)
		}
	})
	t.Run("R12OutOfMemory", func(t *testing.T) {
		other := h.claim(api.ClaimRequest{})
		got, err := h.client().RunExec(ctx, id, api.ExecRequest{Command: []string{"sh", "-c", "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}"}})
		told := fmt.Sprint(err)
		if err == nil {
			told = got.Reason
		}
		t.Logf("exec: %+v %v; the runner: %+v", got, err, h.runner(a))
		if !strings.Contains(told, "memory") && !strings.Contains(h.runner(a).Why, "memory") {
			t.Errorf("told was %q; the runner is %+v", told, h.runner(a))
		}
		if got := h.execute(other, api.ExecRequest{Command: []string{"echo", "well"}}); got.Stdout != "well\n" {
			t.Errorf("another runner: %+v", got)
		}
	})
	t.Run("R12OutOfMemoryIsThatOfOne", func(t *testing.T) {
		b := h.claim(api.ClaimRequest{})
		const eat = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
		own := func(what string) {
			t.Helper()
			if got := h.execute(b, api.ExecRequest{Command: []string{"sh", "-c", "kill -9 $$"}}); got.ExitCode != 137 || got.Reason != "" {
				t.Errorf("its own kill -9, %s: %+v", what, got)
			}
		}
		killed := func(id string) {
			t.Helper()
			_, end := h.attach(b, id, -1)
			if end.ExitCode != 137 || !strings.Contains(end.Reason, "out of memory") {
				t.Errorf("%s: %+v", id, end)
			}
		}
		own("before anything")
		// One whose child the kernel has killed, and which went on: nobody has asked for its sake.
		if got := h.execute(b, api.ExecRequest{Command: []string{"sh", "-c", "sh -c '" + eat + "'; echo $?"}}); got.Stdout != "137\n" || got.ExitCode != 0 {
			t.Fatalf("%+v", got)
		}
		own("after a child of an earlier execution was out of memory")
		if got := h.execute(b, api.ExecRequest{Command: []string{"sh", "-c", eat}}); got.ExitCode != 137 || !strings.Contains(got.Reason, "out of memory") {
			t.Errorf("%+v", got)
		}
		own("after an earlier execution was out of memory")
		// One that is joined when it is over is judged by what was when it began.
		h.detach(b, "late", eat)
		h.eventually("it has ended", func() bool { return !must(h.client().Execution(ctx, muster.AllocID(b.ID), "late"))(t).Running })
		killed("late")
		own("after that was joined")
		if err := h.client().Release(ctx, muster.AllocID(b.ID)); err != nil {
			t.Error(err)
		}
	})
	t.Run("R11Released", func(t *testing.T) {
		b := h.claim(api.ClaimRequest{})
		e := must(h.client().Exec(ctx, muster.AllocID(b.ID), api.ExecRequest{Command: []string{"sh", "-c", "echo begin; exec sleep 1000"}}))(t)
		if _, data, err := e.Next(); err != nil || string(data) != "begin\n" {
			t.Fatalf("%q %v", data, err)
		}
		if err := h.client().Release(ctx, muster.AllocID(b.ID)); err != nil {
			t.Fatal(err)
		}
		_, _, err := e.Next()
		t.Logf("told: %v, %+v", err, e.End())
		switch end := e.End(); {
		case err == nil:
			t.Error("it goes on")
		case err == io.EOF && !strings.Contains(end.Reason, "released"), err != io.EOF && !strings.Contains(err.Error(), "released"):
			t.Errorf("its client is told %v, %+v", err, end)
		}
		_ = e.Close()
		if _, err := h.client().RunExec(ctx, muster.AllocID(b.ID), api.ExecRequest{Command: []string{"true"}}); !client.IsGone(err) {
			t.Errorf("used after it was released: %v", err)
		}
	})
	h.endRunners()
	h.quiet()
}

// largeOutput: nothing is lost of much, and who reads slowly makes the program wait and nobody else.
func (h *host) largeOutput(t *testing.T, a api.Alloc) {
	const size = 100_000_000
	id := muster.AllocID(a.ID)
	sum := strings.Fields(h.inside(a, "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom >/big; sha256sum </big", size)))[0]
	slow := must(h.client().Exec(t.Context(), id, api.ExecRequest{Command: []string{"sh", "-c", "cat /big; touch /slow-is-done"}}))(t)
	h.detach(a, "spooled", "cat /big; touch /spooled-is-done")
	// Whoever is quick is not held up, and has all.
	quick := must(h.client().Exec(t.Context(), id, api.ExecRequest{Command: []string{"cat", "/big"}}))(t)
	got := newDigest()
	if end := must(quick.Wait(got, io.Discard))(t); end.ExitCode != 0 || hex.EncodeToString(got.Sum(nil)) != sum {
		t.Errorf("%+v, digest %x of %s", end, got.Sum(nil), sum)
	}
	if got := h.inside(a, "sh", "-c", "ls /"); strings.Contains(got, "done") {
		t.Errorf("programs whose output nobody has taken have ended: %q", got)
	}
	got = newDigest()
	if end := must(slow.Wait(got, io.Discard))(t); end.ExitCode != 0 || hex.EncodeToString(got.Sum(nil)) != sum {
		t.Errorf("read late: %+v, digest %x of %s", end, got.Sum(nil), sum)
	}
	spooled := must(h.client().Attach(t.Context(), id, api.ExecAttach{Attach: "spooled"}))(t)
	got = newDigest()
	if end := must(spooled.Wait(got, io.Discard))(t); end.ExitCode != 0 || hex.EncodeToString(got.Sum(nil)) != sum {
		t.Errorf("detached, and joined late: %+v, digest %x of %s", end, got.Sum(nil), sum)
	}
	h.inside(a, "rm", "/big")
}

// A server that is killed forgets no claim and hands no runner to two; executions go on; and so it is with a killed agent.
func TestRunnersServerAndAgentKilled(t *testing.T) {
	t.Parallel()
	h := runnerHost(t, 3)
	dice := chance(t)
	never := api.Duration(0)
	a := h.claim(api.ClaimRequest{TTL: &never})
	h.warm("e", 3)
	h.detach(a, "long", lasting)
	init := h.initOf(a)
	before := h.counts("e")

	// R20: the same counts, and what ran goes on.
	h.kill()
	h.start()
	if after := h.counts("e"); after != before {
		t.Errorf("runners were %+v, after a restart they are %+v", before, after)
	}
	if !init.alive() || h.runner(a).State != string(muster.RunnerClaimed) {
		t.Errorf("the claimed runner is %+v", h.runner(a))
	}
	h.checkLasting(a, "long")

	// R19: killed in the middle of claims. What clients were told is checked as one history; whoever asks once and never
	// again, and may have been given a runner without hearing of it, loses it in time.
	var said history
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for i := range 4 {
		wg.Go(func() { said.claims(ctx, h, i) })
	}
	wg.Go(func() {
		for ttl := api.Duration(2 * time.Second); ctx.Err() == nil; pause(200 * time.Millisecond) {
			_, _ = h.client().Patient(-1).Claim(ctx, api.ClaimRequest{Environment: "e", Wait: api.Duration(time.Second), TTL: &ttl}, "")
		}
	})
	for range 3 {
		pause(300*time.Millisecond + durationUpTo(dice, 700))
		h.kill()
		h.start()
	}
	// R1, R23: and the agent, with the link to it.
	dir := h.instanceOf(a)
	agent := h.theAgent(dir)
	if err := agent.Kill(); err != nil {
		t.Fatal(err)
	}
	h.anotherAgent(dir, agent)
	h.eventually("the clients have had answers of all kinds", said.enough)
	stop()
	wg.Wait()
	said.check(t)
	if !init.alive() {
		t.Error("the claimed runner did not live on")
	}
	// What was still on its way when the clients left has an hour; it is given back here.
	h.eventually("the claims without a holder have expired", func() bool {
		for c, err := range h.client().Claims(t.Context(), muster.ClaimHeld) {
			if err != nil {
				t.Fatal(err)
			}
			if c.Runner != a.ID && c.Deadline != nil && time.Until(*c.Deadline) > time.Minute {
				_ = h.client().Release(t.Context(), muster.AllocID(c.Runner))
			}
		}
		return h.counts("e").Claimed == 1
	})
	h.warm("e", 3)
	h.endRunners()
}

// An init that is killed, and a whole instance: holders are told, and the stock is there again.
func TestRunnersLost(t *testing.T) {
	t.Parallel()
	h := runnerHost(t, 2)
	a := h.claim(api.ClaimRequest{})
	h.warm("e", 2)
	h.initOf(a).kill()
	h.eventually("the claim is lost", func() bool { return h.runner(a).State == string(muster.RunnerGone) })
	_, err := h.client().RunExec(t.Context(), muster.AllocID(a.ID), api.ExecRequest{Command: []string{"true"}})
	if !client.IsGone(err) {
		t.Errorf("used after its init was killed: %v", err)
	}
	t.Logf("init killed: %v; %s", err, h.runner(a).Why)

	// R21, R22: the node, with one that is claimed, two that are warm, and those that take their places.
	b := h.claim(api.ClaimRequest{})
	began := h.counts("e")
	dir := h.instanceOf(b)
	killAtOnce(slices.Concat(touching(dir), inCgroups([]string{filepath.Base(dir)})))
	h.eventually("the claim is lost with its node", func() bool { return h.runner(b).State == string(muster.RunnerGone) })
	if _, err := h.client().RunExec(t.Context(), muster.AllocID(b.ID), api.ExecRequest{Command: []string{"true"}}); !client.IsGone(err) {
		t.Errorf("used after its node was lost: %v", err)
	} else {
		t.Logf("node killed: %v", err)
	}
	h.warm("e", 2)
	c := h.claim(api.ClaimRequest{})
	if got := h.execute(c, api.ExecRequest{Command: []string{"echo", "again"}}); got.Stdout != "again\n" {
		t.Errorf("%+v", got)
	}
	if after := h.counts("e"); after.Created <= began.Created || after.Claimed != 1 {
		t.Errorf("runners were %+v and are %+v", began, after)
	}
	h.endRunners()
}

// Without a network there is only a loopback; with one, ports are reached only when they are exposed.
func TestRunnersNetwork(t *testing.T) {
	t.Parallel()
	h := runnerHost(t, 1)
	image := h.archive("again", imagetest.Busybox(t))
	h.environment("net", image, 1, func(s *api.EnvironmentSpec) { s.Network, s.Ports = "bridge", []int{8080} })
	h.warm("net", 1)
	alone, out := h.claim(api.ClaimRequest{}), h.claim(api.ClaimRequest{Environment: "net"})
	if got := h.inside(alone, "ls", "/sys/class/net"); got != "lo\n" {
		t.Errorf("without a network there is %q", got)
	}
	if got := h.inside(out, "ip", "route"); !strings.Contains(got, "default") {
		t.Errorf("with a network the way out is %q", got)
	}
	for _, port := range []int{8080, 8081} {
		h.detach(out, fmt.Sprint("listen", port), fmt.Sprintf("while :; do echo from %d | nc -l -p %d; done", port, port))
		h.detach(alone, fmt.Sprint("listen", port), fmt.Sprintf("while :; do echo from %d | nc -l -p %d; done", port, port))
	}
	address := strings.Fields(h.inside(out, "hostname", "-i"))[0]
	h.eventually("the exposed port is reached", func() bool { return strings.HasPrefix(dialed(address, 8080), "from 8080") })
	if got := dialed(address, 8081); got != "" {
		t.Errorf("a port that is not exposed says %q", got)
	}
	// The holder reaches any, wherever it listens.
	for _, a := range []api.Alloc{alone, out} {
		h.eventually("the holder reaches a port", func() bool {
			conn, err := h.client().DialPort(t.Context(), muster.AllocID(a.ID), 8081)
			if err != nil {
				return false
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			b := make([]byte, 9)
			_, err = io.ReadFull(conn, b)
			return err == nil && string(b) == "from 8081"
		})
	}
	h.endRunners()
}

// dialed is what a port says first; empty if nothing is to be had there.
func dialed(address string, port int) string {
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, strconv.Itoa(port)), 2*time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 64)
	n, _ := conn.Read(b)
	return string(b[:n])
}
