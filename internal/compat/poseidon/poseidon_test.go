package poseidon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

func TestHealth(t *testing.T) {
	b := stocked(t, 1, true)
	b.want(b.do("GET", "health", "", header("Poseidon-Token", "")), 204, "")
	j := b.state.Latest().Environment("default", "7")
	b.propose(&state.RunnersWanted{UID: j.UID, Count: 4, Stock: 4, Why: "a test", Alert: 5})
	if m := b.want(b.do("GET", "health", ""), 503, codeDepleting); !strings.Contains(m.Message, "7") {
		t.Errorf("told was %q", m.Message)
	}
	// Whoever has no token is not told which ones there are.
	if m := b.want(b.do("GET", "health", "", header("Poseidon-Token", "")), 503, codeDepleting); strings.Contains(m.Message, "7") {
		t.Errorf("told was %q", m.Message)
	}
}

func TestVersion(t *testing.T) {
	b := newBench(t)
	if a := b.do("GET", "version", "", header("Poseidon-Token", "")); a.StatusCode != 200 || a.body != "\"v-test\"\n" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	b = newBench(t, func(_ *parts, c *Config) { c.Version = "" })
	b.want(b.do("GET", "version", ""), 404, "")
}

// Each route with the path of a runner that is claimed.
func routes(runner string) []string {
	return []string{
		"GET statistics/execution-environments", "GET execution-environments", "GET execution-environments/7", "PUT execution-environments/7", "DELETE execution-environments/8",
		"POST runners", "GET " + runner + "/files", "PATCH " + runner + "/files", "GET " + runner + "/files/raw", "POST " + runner + "/execute", "GET " + runner + "/websocket", "DELETE " + runner,
	}
}

func TestWrongTokensAreRefused(t *testing.T) {
	b := stocked(t, 1, true)
	for _, route := range append(routes(b.provided()), "GET nothing", "POST health") {
		method, path, _ := strings.Cut(route, " ")
		for _, wrong := range []string{"", "wrong", token + "x", "t0ken-of-the-server"} {
			a := b.do(method, path, "", header("Poseidon-Token", wrong))
			b.want(a, 401, "")
			if strings.Contains(a.body, token) {
				t.Fatal("the token is told")
			}
		}
	}
	// It opens nothing else.
	req := func(r *http.Request) {
		r.URL.Path, r.RequestURI = "/v1/jobs", "/v1/jobs"
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if a := b.do("GET", "", "", req); a.StatusCode != 401 {
		t.Errorf("the token of Poseidon's clients opens /v1: %d %s", a.StatusCode, a.body)
	}
	if strings.Contains(b.logged(), token) {
		t.Error("the token is in the log")
	}

	// Without one of its own, the server's.
	b = newBench(t, func(_ *parts, c *Config) { c.Token = muster.Secret{} })
	b.want(b.do("GET", "execution-environments", ""), 401, "")
	b.want(b.do("GET", "execution-environments", "", header("Poseidon-Token", "t0ken-of-the-server")), 200, "")
	// With none at all, what a foreign web page's form can send is refused.
	b = newBench(t, func(h *parts, c *Config) {
		c.Token, h.Token, h.NoAuth = muster.Secret{}, muster.Secret{}, true
	})
	b.want(b.do("GET", "execution-environments", "", header("Poseidon-Token", "")), 200, "")
	b.want(b.do("POST", "runners", "{}", header("Content-Type", "text/plain")), 415, "")
	b.want(b.do("POST", "runners", `{"executionEnvironmentId": 1}`, header("Content-Type", "application/json; charset=utf-8")), 404, "")
	// Who has a token of his own asks for it, even so.
	b = newBench(t, func(h *parts, c *Config) { h.Token, h.NoAuth = muster.Secret{}, true })
	b.want(b.do("GET", "execution-environments", "", header("Poseidon-Token", "")), 401, "")
}

func TestForeignPagesAndHostsAreRefused(t *testing.T) {
	b := newBench(t)
	b.want(b.do("GET", "execution-environments", "", header("Origin", "https://evil.example")), 403, "")
	b.want(b.do("GET", "execution-environments", "", func(r *http.Request) { r.Host = "evil.example" }), 421, "")
}

// P11: clients do not retry, so a request that comes while the server starts is held, and not for ever.
func TestRequestsWaitForTheStart(t *testing.T) {
	late := muster.Faultf(muster.FaultUnavailable, "the server is starting")
	for _, starts := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			started := make(chan struct{})
			b := stocked(t, 1, true, func(h *parts, _ *Config) { h.Started = started })
			b.set(func() { b.late = late })
			began := time.Now()
			go func() {
				time.Sleep(2 * time.Second)
				if starts {
					b.set(func() { b.late = nil })
					close(started)
				}
			}()
			a := b.do("GET", "execution-environments/7", "")
			if took := time.Since(began); starts && (a.StatusCode != 200 || took != 2*time.Second) || !starts && (a.StatusCode != 500 || took != 30*time.Second) {
				t.Errorf("starts %v: %d %s after %s", starts, a.StatusCode, a.body, took)
			}
			// A client that leaves is not waited for.
			if began = time.Now(); !starts {
				ctx, leave := context.WithTimeout(t.Context(), time.Second)
				defer leave()
				b.do("GET", "health", "", func(r *http.Request) { *r = *r.WithContext(ctx) })
				if took := time.Since(began); took != time.Second {
					t.Errorf("after %s", took)
				}
			}
		})
	}
}

func TestNothingBeforeTheLogIsRead(t *testing.T) {
	b := stocked(t, 1, true)
	b.set(func() { b.late = muster.Faultf(muster.FaultUnavailable, "the server is starting") })
	for _, route := range routes("runners/x") {
		method, path, _ := strings.Cut(route, " ")
		b.want(b.do(method, path, ""), 500, codeUnreachable)
	}
}

func TestUnknownRoutes(t *testing.T) {
	b := newBench(t)
	b.want(b.do("GET", "nothing", ""), 404, "")
	b.want(b.do("GET", "runners/x/y/z", ""), 404, "")
	for _, route := range []string{"POST health", "GET runners", "POST execution-environments/1", "PUT runners/x/files", "GET runners/x/execute"} {
		method, path, _ := strings.Cut(route, " ")
		a := b.do(method, path, "")
		if b.want(a, 405, ""); a.Header.Get("Allow") == "" {
			t.Errorf("%s: nothing is said to be allowed", route)
		}
	}
}

func TestEnvironments(t *testing.T) {
	b := newBench(t)
	for _, id := range []string{"0", "17", "900719925474"} {
		b.want(b.do("GET", "execution-environments/"+id, ""), 404, "")
		b.want(b.do("DELETE", "execution-environments/"+id, ""), 404, "")
		b.want(b.do("PUT", "execution-environments/"+id, environ()), 201, "")
		b.want(b.do("PUT", "execution-environments/"+id, environ(func(m map[string]any) { m["cpuLimit"] = 1 })), 204, "")
		got := b.do("GET", "execution-environments/"+id+"?fetch=true", "")
		if want := `{"id":` + id + `,"image":"busybox","prewarmingPoolSize":2,"cpuLimit":1,"memoryLimit":64,"networkAccess":false,"exposedPorts":[]}`; strings.TrimSpace(got.body) != want {
			t.Errorf("got  %swant %s", got.body, want)
		}
	}
	// What is no number is somebody else's, and so is another namespace.
	for _, spec := range []api.EnvironmentSpec{{Name: "python"}, {Name: "007"}, {Name: "17", Namespace: "other"}} {
		if _, err := b.own.Submit.SetEnvironment(t.Context(), &api.EnvironmentSetting{Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	list := decoded[map[string][]environment](b, b.do("GET", "execution-environments?fetch=false", ""))["executionEnvironments"]
	if len(list) != 3 {
		t.Errorf("listed are %+v", list)
	}
	stats := decoded[map[string]statistic](b, b.do("GET", "statistics/execution-environments", ""))
	if len(stats) != 3 || stats["17"] != (statistic{17, 2, 0, 0}) {
		t.Errorf("%+v", stats)
	}
	b.want(b.do("DELETE", "execution-environments/17", ""), 204, "")
	b.want(b.do("DELETE", "execution-environments/17", ""), 404, "")
	b.want(b.do("GET", "execution-environments/17", ""), 404, "")
	b.want(b.do("PUT", "execution-environments/17", environ()), 201, "")
}

func TestEnvironmentsOfNone(t *testing.T) {
	b := newBench(t)
	for path, want := range map[string]string{"execution-environments": `{"executionEnvironments":[]}`, "statistics/execution-environments": "{}"} {
		if a := b.do("GET", path, ""); a.StatusCode != 200 || strings.TrimSpace(a.body) != want {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
}

func TestEnvironmentIsOurs(t *testing.T) {
	b := newBench(t)
	b.want(b.do("PUT", "execution-environments/17", environ(func(m map[string]any) { m["networkAccess"], m["exposedPorts"] = true, []int{80, 8080} })), 201, "")
	spec := func() *api.EnvironmentSpec { return b.state.Latest().Environment("default", "17").Env.Spec }
	s := spec()
	if s.Image != "busybox" || s.Resources.CPU != 0.02 || s.Resources.Memory != 16<<20 || s.Resources.MemoryMax != 64<<20 || s.Network != "bridge" || fmt.Sprint(s.Ports) != "[80 8080]" ||
		*s.Warm.Min != 2 || *s.Warm.Target != 2 || s.Warm.Max != 2 || s.Env["CODEOCEAN"] != "true" {
		t.Fatalf("%+v", s)
	}
	// What only an operator can set stays.
	mine := s.Clone()
	mine.Pool, mine.Resources.Pids, mine.Alert.Below = "fast", 99, 0.25
	if _, err := b.own.Submit.SetEnvironment(t.Context(), &api.EnvironmentSetting{Spec: *mine}); err != nil {
		t.Fatal(err)
	}
	version := b.state.Latest().Environment("default", "17").Version
	b.want(b.do("PUT", "execution-environments/17", environ(func(m map[string]any) {
		m["networkAccess"], m["exposedPorts"] = true, []int{80, 8080}
		m["prewarmingPoolSize"] = 0
	})), 204, "")
	if s := spec(); s.Pool != "fast" || s.Resources.Pids != 99 || s.Alert.Below != 0.25 || *s.Warm.Target != 0 || *s.Warm.Min != 0 {
		t.Errorf("%+v", s)
	}
	// P6: each PUT is a rollout, whatever it changes; what operators set is one only where it says how a runner runs.
	if now := b.state.Latest().Environment("default", "17").Version; now != version+1 {
		t.Errorf("version %d became %d", version, now)
	}
	same := environ(func(m map[string]any) {
		m["networkAccess"], m["exposedPorts"], m["prewarmingPoolSize"] = true, []int{80, 8080}, 0
	})
	b.want(b.do("PUT", "execution-environments/17", same), 204, "")
	if now := b.state.Latest().Environment("default", "17").Version; now != version+2 {
		t.Errorf("the same again: version %d became %d", version+1, now)
	}
	if e := decoded[environment](b, b.do("GET", "execution-environments/17", "")); e.PrewarmingPoolSize != 0 || !e.NetworkAccess || len(e.ExposedPorts) != 2 {
		t.Errorf("%+v", e)
	}
	// Without a network there are no ports.
	b.want(b.do("PUT", "execution-environments/17", environ(func(m map[string]any) { m["exposedPorts"] = []int{80} })), 204, "")
	if s := spec(); s.Network != "none" || len(s.Ports) != 0 {
		t.Errorf("%+v", s)
	}
}

// P5: what clients set is the most that a runner may use; what is set aside for it is the operator's to say, and never more.
func TestMemoryThatIsSetAside(t *testing.T) {
	b := newBench(t)
	for _, c := range []struct {
		limit        int
		reserve      api.Size
		memory, most api.Size
	}{
		{2048, 0, 16 << 20, 2 << 30}, {2048, 256 << 20, 256 << 20, 2 << 30}, {8, 0, 8 << 20, 0}, {16, 0, 16 << 20, 0}, {64, 1 << 30, 64 << 20, 0},
	} {
		b.p.cfg.MemoryReserve = c.reserve
		if a := b.do("PUT", "execution-environments/17", environ(func(m map[string]any) { m["memoryLimit"] = c.limit })); a.StatusCode >= 300 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
		if r := b.state.Latest().Environment("default", "17").Env.Spec.Resources; r.Memory != c.memory || r.MemoryMax != c.most {
			t.Errorf("%d MB with %s: %s set aside, at most %s", c.limit, c.reserve, r.Memory, r.MemoryMax)
		}
		if e := decoded[environment](b, b.do("GET", "execution-environments/17", "")); e.MemoryLimit != int64(c.limit) {
			t.Errorf("%d MB are shown as %d", c.limit, e.MemoryLimit)
		}
	}
}

// What an operator changes while a client sets the environment is not lost, whether it makes a new version or not.
func TestEnvironmentChangedMeanwhile(t *testing.T) {
	b := newBench(t)
	spec := func() *api.EnvironmentSpec { return b.state.Latest().Environment("default", "17").Env.Spec }
	meanwhile := func(do func()) {
		t.Helper()
		called := false
		b.set(func() { b.beforeSet = func() { called = true; do() } })
		t.Cleanup(func() {
			if !called {
				t.Error("nothing happened meanwhile")
			}
		})
	}
	operator := func(change func(*api.EnvironmentSpec)) func() {
		return func() {
			mine := spec().Clone()
			change(mine)
			if _, err := b.own.Submit.SetEnvironment(t.Context(), &api.EnvironmentSetting{Spec: *mine}); err != nil {
				t.Error(err)
			}
		}
	}
	put := func(status, mhz int) {
		t.Helper()
		b.want(b.do("PUT", "execution-environments/17", environ(func(m map[string]any) { m["cpuLimit"] = mhz })), status, "")
		if got := spec().Resources.CPU; got != float64(mhz)/1000 {
			t.Errorf("cpu is %v, want %d MHz", got, mhz)
		}
	}
	// Somebody else makes it first.
	meanwhile(func() {
		if _, err := b.own.Submit.SetEnvironment(t.Context(), &api.EnvironmentSetting{Spec: api.EnvironmentSpec{Name: "17", Template: api.Template{Image: "other", Resources: api.ResourcesSpec{Pids: 77}}}}); err != nil {
			t.Error(err)
		}
	})
	put(204, 10)
	meanwhile(operator(func(s *api.EnvironmentSpec) { s.Alert.Below = 0.25 })) // no new version
	put(204, 20)
	meanwhile(operator(func(s *api.EnvironmentSpec) { s.Pool = "fast" }))
	put(204, 30)
	if s := spec(); s.Resources.Pids != 77 || s.Alert.Below != 0.25 || s.Pool != "fast" || s.Image != "busybox" {
		t.Errorf("%+v", s)
	}
	// It is deleted.
	meanwhile(func() { b.want(b.do("DELETE", "execution-environments/17", ""), 204, "") })
	put(201, 40)
	if s := spec(); s.Pool != "" || s.Resources.Pids == 77 {
		t.Errorf("%+v", s)
	}
}

func TestWrongEnvironments(t *testing.T) {
	b := newBench(t)
	with := func(name string, v any) string { return environ(func(m map[string]any) { m[name] = v }) }
	for _, body := range []string{
		"", "{", "[]", "null", `"x"`, "7", environ() + "x", environ() + environ(), with("cpuLimit", "20"), with("cpuLimit", 1.5), with("cpuLimit", -1), with("cpuLimit", 0),
		with("cpuLimit", 1<<62), with("memoryLimit", 0), with("memoryLimit", -4), with("memoryLimit", int64(1)<<62), with("image", ""), with("image", nil), with("image", 7), with("image", "no such image!"), with("prewarmingPoolSize", -1),
		with("prewarmingPoolSize", 1<<40), with("networkAccess", "yes"), with("exposedPorts", "80"), "\xff\xfe", strings.Repeat("[", 100_000),
		environ(func(m map[string]any) { m["networkAccess"], m["exposedPorts"] = true, []int{70_000} }), environ(func(m map[string]any) { m["networkAccess"], m["exposedPorts"] = true, []int{0} }),
		environ(func(m map[string]any) { delete(m, "memoryLimit") }),
	} {
		a := b.do("PUT", "execution-environments/1", body)
		if a.StatusCode != 400 {
			t.Errorf("%.100q: %d %s", body, a.StatusCode, a.body)
		}
	}
	// P1: CodeOcean sends the id of an environment in its body too, and Poseidon ignores what it does not know.
	b.want(b.do("PUT", "execution-environments/17", environ(func(m map[string]any) { m["id"], m["created_at"] = 17, "2020-01-01" })), 201, "")
	b.want(b.do("DELETE", "execution-environments/17", ""), 204, "")
	// A list may be null, as clients written in Go send an empty one.
	b.want(b.do("PUT", "execution-environments/1", with("exposedPorts", nil)), 201, "")
	b.want(b.do("PUT", "execution-environments/1", `{"image": "x`+strings.Repeat("x", maxBody)+`"}`), 413, "")
	for _, id := range []string{"x", "-1", "1.5", "99999999999999999999", "1e3", "0x1", "%20", "a/b", "%2e%2e"} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			if a := b.do(method, "execution-environments/"+id, environ()); a.StatusCode != 404 && a.StatusCode != 301 && a.StatusCode != 405 {
				t.Errorf("%s %s: %d %s", method, id, a.StatusCode, a.body)
			}
		}
	}
	b.want(b.do("GET", "execution-environments?fetch=maybe", ""), 400, "")
	b.want(b.do("GET", "execution-environments/1?fetch=2", ""), 400, "")
	b.want(b.do("GET", "execution-environments/1?fetch=T", ""), 200, "")
	if m := b.want(b.do("PUT", "execution-environments/1", "{\n\"image\": \"x\",\n\"cpuLimit\": \"much\"}"), 400, ""); !strings.Contains(m.Message, "line 3") || !strings.Contains(m.Message, "cpuLimit") {
		t.Errorf("told was %q", m.Message)
	}
}

func TestProvidedRunners(t *testing.T) {
	b := stocked(t, 2, true)
	b.want(b.do("POST", "runners", `{"executionEnvironmentId": 8, "inactivityTimeout": 0}`), 404, "")
	for _, body := range []string{
		"", "{", "{}", `{"executionEnvironmentId": "7"}`, `{"executionEnvironmentId": 7, "inactivityTimeout": -1}`, `{"executionEnvironmentId": 7, "inactivityTimeout": 1e30}`,
		`{"executionEnvironmentId": 7, "inactivityTimeout": 9223372036854775807}`, `{"executionEnvironmentId": null}`,
	} {
		if a := b.do("POST", "runners", body); a.StatusCode != 400 {
			t.Errorf("%q: %d %s", body, a.StatusCode, a.body)
		}
	}
	a := b.do("POST", "runners", `{"executionEnvironmentId": 7, "inactivityTimeout": 60, "ignored": {"x": 1}}`)
	r := decoded[runner](b, a)
	if a.body != fmt.Sprintf("{\"runnerId\":%q,\"mappedPorts\":[]}\n", r.RunnerID) {
		t.Errorf("%s", a.body)
	}
	c, err := b.own.Claims.Claimed(r.RunnerID)
	if err != nil || c.Idle != 60e6 || c.Deadline != 0 {
		t.Fatalf("%+v %v", c, err)
	}
	if s := decoded[map[string]statistic](b, b.do("GET", "statistics/execution-environments", ""))["7"]; s.UsedRunners != 1 || s.IdleRunners != 1 {
		t.Errorf("%+v", s)
	}
	second := decoded[runner](b, b.do("POST", "runners", `{"executionEnvironmentId": 7}`))
	if c, err := b.own.Claims.Claimed(second.RunnerID); err != nil || c.Idle != 0 || c.Deadline != 0 || second.RunnerID == r.RunnerID {
		t.Fatalf("%+v %v", c, err)
	}
	b.want(b.do("POST", "runners", `{"executionEnvironmentId": 7}`), 500, codeOverload)
}

// Whether a client waits for a runner is the operator's choice, as it cannot say so itself.
func TestOperatorChoosesWhetherClientsWait(t *testing.T) {
	for _, wait := range []time.Duration{0, 3 * time.Second} {
		b := stocked(t, 1, true, func(_ *parts, c *Config) { c.Wait = wait })
		if b.provided(); b.wait != wait {
			t.Errorf("waits %s, want %s", b.wait, wait)
		}
	}
}

// A client that leaves while it is given a runner will never name it.
func TestRunnerOfAClientThatHasLeft(t *testing.T) {
	b := stocked(t, 1, true)
	ctx, leave := context.WithCancel(t.Context())
	b.set(func() { b.whenClaimed = leave })
	b.do("POST", "runners", `{"executionEnvironmentId": 7, "inactivityTimeout": 0}`, func(r *http.Request) { *r = *r.WithContext(ctx) })
	if s := decoded[map[string]statistic](b, b.do("GET", "statistics/execution-environments", ""))["7"]; s.UsedRunners != 0 || s.IdleRunners != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOnlyWhereItIsMounted(t *testing.T) {
	b := newBench(t, func(h *parts, _ *Config) { h.Token, h.NoAuth = muster.Secret{}, true })
	a, err := b.own.build()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"health", "version", "execution-environments"} {
		rec := httptest.NewRecorder()
		a.Handler().ServeHTTP(rec, httptest.NewRequest("GET", "http://127.0.0.1:4750/api/v1/"+path, nil))
		if rec.Code != 404 {
			t.Errorf("%s: %d", path, rec.Code)
		}
	}
}

func TestRequestsAreCounted(t *testing.T) {
	b := stocked(t, 1, true)
	b.do("POST", b.provided()+"/execute", "")
	b.do("GET", "nothing", "")
	if got := b.metrics(); !strings.Contains(got, `route="POST /api/v1/runners/{runner}/execute"`) || strings.Contains(got, "api/v1/nothing") {
		t.Errorf("%.2000s", got)
	}
}

// A defect of ours is told as one, and as a client reads it.
func TestPanic(t *testing.T) {
	b := newBench(t)
	b.p.route("GET", "broken", func(http.ResponseWriter, *http.Request) error { panic("hunter2") })
	a := b.do("GET", "broken", "")
	if b.want(a, 500, codeUnknown); strings.Contains(a.body, "hunter2") {
		t.Error(a.body)
	}
}

func TestUnknownRunnersAreNotFound(t *testing.T) {
	b := stocked(t, 3, true)
	path := b.provided()
	var warm muster.AllocID
	b.state.Latest().Runners(b.state.Latest().Environment("default", "7").UID, muster.RunnerWarm, func(a *state.Alloc) bool { warm = a.ID; return false })
	// One that was claimed by others is not for who has this token.
	c, err := b.own.Claims.Claim(t.Context(), &api.ClaimRequest{Environment: "7"}, "")
	if err != nil {
		t.Fatal(err)
	}
	b.want(b.do("DELETE", path, ""), 204, "")
	for _, runner := range []string{path, "runners/unknown", "runners/" + string(warm), "runners/" + string(c.Runner), "runners/u-7-1", "runners/%00", "runners/" + strings.Repeat("x", 5000)} {
		for _, route := range routes(runner)[6:] {
			method, path, _ := strings.Cut(route, " ")
			b.want(b.do(method, path, ""), 410, "")
		}
	}
	if m := b.want(b.do("DELETE", path, ""), 410, ""); !strings.Contains(m.Message, "released") {
		t.Errorf("told was %q", m.Message)
	}
	if _, err := b.own.Claims.Claimed(string(c.Runner)); err != nil {
		t.Error(err)
	}
}

func TestEnvironmentDeletedUnderARunner(t *testing.T) {
	b := stocked(t, 2, true)
	path := b.provided()
	b.want(b.do("DELETE", "execution-environments/7", ""), 204, "")
	for _, get := range []string{"statistics/execution-environments", "execution-environments"} {
		if a := b.do("GET", get, ""); a.StatusCode != 200 || strings.Contains(a.body, "7") {
			t.Errorf("%s: %d %s", get, a.StatusCode, a.body)
		}
	}
	b.want(b.do("POST", "runners", `{"executionEnvironmentId": 7}`), 404, "")
	b.want(b.do("POST", path+"/execute", `{"command": "true"}`), 200, "")
	// Set again, it counts the runners that are still in use.
	b.want(b.do("PUT", "execution-environments/7", environ()), 201, "")
	used := func() int {
		return decoded[map[string]statistic](b, b.do("GET", "statistics/execution-environments", ""))["7"].UsedRunners
	}
	if n := used(); n != 1 {
		t.Errorf("%d runners are used", n)
	}
	b.want(b.do("DELETE", path, ""), 204, "")
	if n := used(); n != 0 {
		t.Errorf("%d runners are used after the release", n)
	}
}

func TestWhatGoesWrongBelow(t *testing.T) {
	secret := errors.New("dial tcp 10.1.2.3: password hunter2 refused")
	for _, c := range []struct {
		err  error
		code string
	}{
		{muster.Faultf(muster.FaultUnavailable, "no leader"), codeUnreachable}, {muster.Faultf(muster.FaultDiskLow, "disk"), codeInternal},
		{muster.Faultf(muster.FaultQuota, "quota"), codeOverload}, {secret, codeUnknown}, {muster.Faultf(muster.FaultAmbiguous, "may be"), codeUnreachable},
	} {
		b := stocked(t, 1, true)
		path := b.provided()
		b.set(func() { b.err, b.full, b.reach = c.err, c.err, c.err })
		for _, route := range []string{"PUT execution-environments/9 " + environ(), "DELETE execution-environments/7 ", `POST runners {"executionEnvironmentId": 7}`, "DELETE " + path + " ", "GET " + path + "/files ", "GET " + path + "/files/raw?path=x ", `PATCH ` + path + `/files {"delete": ["x"]}`} {
			parts := strings.SplitN(route, " ", 3)
			if parts[0] == "PATCH" && (c.code == codeInternal || c.code == codeOverload) {
				continue // of a file that alone would be wrong
			}
			a := b.do(parts[0], parts[1], parts[2])
			if b.want(a, 500, c.code); strings.Contains(a.body, "hunter2") {
				t.Errorf("%s tells what is secret: %s", route, a.body)
			}
		}
		b.set(func() { b.reach = nil })
	}
}

func TestRequestsAreUse(t *testing.T) {
	b := stocked(t, 1, true)
	path := b.provided()
	before := b.uses()
	b.do("POST", path+"/execute", `{"command": "true"}`)
	b.do("PATCH", path+"/files", `{`)
	if n := b.uses() - before; n != 2 {
		t.Errorf("%d uses were noted", n)
	}
}

func TestExecuteRequests(t *testing.T) {
	b := stocked(t, 1, true)
	path := b.provided()
	for _, body := range []string{
		"", "{", `{"command": 7}`, `{"command": "x", "timeLimit": -1}`, `{"command": "x", "timeLimit": 1.5}`, `{"command": "x", "timeLimit": 9223372036854775807}`,
		`{"command": "a\u0000b"}`, `{"command": "x", "environment": {"A=B": "c"}}`, `{"command": "x", "environment": {"": "c"}}`, `{"command": "x", "environment": {"A": "\u0000"}}`,
		`{"command": "x", "environment": ["A=b"]}`, `{"command": "x", "privilegedExecution": "no"}`, `{"command": "` + strings.Repeat("x", api.ExecMaxText) + `"}`,
	} {
		if a := b.do("POST", path+"/execute", body); a.StatusCode != 400 {
			t.Errorf("%.80q: %d %s", body, a.StatusCode, a.body)
		}
	}
	for _, c := range []struct{ host, proto, want string }{
		{"127.0.0.1:4750", "", "ws://127.0.0.1:4750/"}, {"localhost", "https", "wss://localhost/"}, {"[::1]:80", "http", "ws://[::1]:80/"},
	} {
		a := b.do("POST", path+"/execute", `{"command": "echo 'single quotes'", "environment": null}`, func(r *http.Request) { r.Host = c.host }, header("X-Forwarded-Proto", c.proto))
		url := decoded[map[string]string](b, a)["websocketUrl"]
		if !strings.HasPrefix(url, c.want+"api/v1/"+path+"/websocket?executionID=") {
			t.Errorf("%s", a.body)
		}
	}
	// R9: unknown, and not asked as a WebSocket.
	ws := []func(*http.Request){header("Connection", "Upgrade"), header("Upgrade", "websocket"), header("Sec-Websocket-Version", "13"), header("Sec-Websocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==")}
	b.want(b.do("GET", path+"/websocket?executionID=unknown", "", ws...), 404, "")
	b.want(b.do("GET", path+"/websocket", "", ws...), 404, "")
	b.want(b.do("GET", path+"/websocket?executionID=unknown", ""), 404, "")
	// One that waits is not used up by a request that is no WebSocket.
	_, known, _ := strings.Cut(decoded[map[string]string](b, b.do("POST", path+"/execute", `{"command": "true"}`))["websocketUrl"], "/api/v1/")
	for range 2 {
		b.want(b.do("GET", known, ""), 426, "")
	}
}

// Nothing that can be sent makes an answer that is none of this API's, or a 500 that says UNKNOWN.
func TestGarbage(t *testing.T) {
	b := stocked(t, 4, true)
	b.set(func() { b.reach = muster.Faultf(muster.FaultUnavailable, "no node") })
	path := b.provided()
	piece := rapid.SampledFrom([]string{
		"execution-environments", "runners", path, "statistics", "files", "raw", "execute", "websocket", "7", "-1", "%2e%2e", "..", "%00", "x", "%ff", "?path=%00", "?path=../../../etc/passwd", "?fetch=x", "?recursive=2",
	})
	value := rapid.SampledFrom([]string{`"x"`, "7", "-1", "null", "[]", "{}", "1e99", `"\u0000"`, `["../../etc/passwd"]`, `[{"path":"../x","content":"eA=="}]`, `[{"path":"x","content":"!"}]`, "true", "\xff", `{"a":"b"}`})
	field := rapid.SampledFrom([]string{"image", "cpuLimit", "memoryLimit", "command", "environment", "timeLimit", "delete", "copy", "executionEnvironmentId", "inactivityTimeout", "exposedPorts", "odd"})
	rapid.Check(t, func(r *rapid.T) {
		body := rapid.StringN(0, 40, 200).Draw(r, "raw")
		if rapid.Bool().Draw(r, "json") {
			body = "{"
			for i := range rapid.IntRange(0, 4).Draw(r, "fields") {
				if i > 0 {
					body += ","
				}
				body += fmt.Sprintf("%q:%s", field.Draw(r, "field"), value.Draw(r, "value"))
			}
			body += "}"
		}
		method := rapid.SampledFrom([]string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}).Draw(r, "method")
		where := strings.ReplaceAll(strings.Join(rapid.SliceOfN(piece, 1, 4).Draw(r, "path"), "/"), "/?", "?")
		if method == "DELETE" && where == path || strings.Count(where, "?") > 1 {
			return
		}
		a := b.do(method, where, body)
		switch {
		case a.StatusCode < 400 || method == "HEAD":
		default:
			var m message
			if err := json.Unmarshal([]byte(a.body), &m); err != nil || m.Message == "" || m.ErrorCode == codeUnknown || strings.Contains(a.body, token) {
				r.Fatalf("%s %s %q: %d %s", method, where, body, a.StatusCode, a.body)
			}
		}
	})
}
