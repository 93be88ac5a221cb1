package httpapi

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/state"
)

var update = flag.Bool("update", false, "rewrite golden files")

// description31 is the part of the description that tests look at.
type description31 struct {
	OpenAPI    string `json:"openapi"`
	Info       struct{ Title, Version, Description string }
	Security   []map[string][]string `json:"security"`
	Components struct {
		Schemas         map[string]json.RawMessage `json:"schemas"`
		SecuritySchemes map[string]struct{ Type, Scheme string }
	}
	Tags  []struct{ Name, Description string }
	Paths map[string]map[string]struct {
		OperationID string `json:"operationId"`
		Summary     string
		Tags        []string
		Parameters  []struct{ Name, In, Description string }
		Security    *[]map[string][]string
		RequestBody *struct {
			Content map[string]json.RawMessage
		}
		Responses map[string]json.RawMessage
	}
}

func describes(b *bench) description31 {
	b.Helper()
	a := b.do("GET", "/openapi.json", "")
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/openapi+json" {
		b.Fatalf("%d %v", a.StatusCode, a.Header)
	}
	var d description31
	if err := json.Unmarshal([]byte(a.body), &d); err != nil {
		b.Fatal(err)
	}
	return d
}

// TestOpenAPIGolden: what the API takes and answers changes only on purpose.
func TestOpenAPIGolden(t *testing.T) {
	b := newBench(t, 100, withConfig(&clusterStub{}))
	d := describes(b)
	var out strings.Builder
	for _, path := range slices.Sorted(maps.Keys(d.Paths)) {
		for _, method := range slices.Sorted(maps.Keys(d.Paths[path])) {
			op := d.Paths[path][method]
			fmt.Fprintf(&out, "%s %s (%s)\n", strings.ToUpper(method), path, op.OperationID)
			var params []string
			for _, p := range op.Parameters {
				params = append(params, p.In+":"+p.Name)
			}
			if len(params) > 0 {
				fmt.Fprintf(&out, "  takes %s\n", strings.Join(params, " "))
			}
			if op.RequestBody != nil {
				fmt.Fprintf(&out, "  body %s\n", strings.Join(slices.Sorted(maps.Keys(op.RequestBody.Content)), " "))
			}
			fmt.Fprintf(&out, "  answers %s\n", strings.Join(slices.Sorted(maps.Keys(op.Responses)), " "))
		}
	}
	fmt.Fprintf(&out, "types\n  %s\n", strings.Join(slices.Sorted(maps.Keys(d.Components.Schemas)), "\n  ")) // a line each, so that two changes meet seldom
	golden := filepath.Join("testdata", "openapi.golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s(go test ./internal/httpapi -run Golden -update rewrites it)", out.String(), want)
	}
}

func TestOpenAPIDescribesEverything(t *testing.T) {
	b := newBench(t, 100, withConfig(&clusterStub{}))
	d := describes(b)
	if d.OpenAPI != "3.1.0" || d.Info.Version != "v-test" || d.Info.Description == "" {
		t.Errorf("%+v", d.Info)
	}
	if s := d.Components.SecuritySchemes["token"]; s.Type != "http" || s.Scheme != "bearer" || len(d.Security) != 1 {
		t.Errorf("security %+v %+v", s, d.Security)
	}
	ids := map[string]bool{}
	for path, methods := range d.Paths {
		for method, op := range methods {
			if op.Summary == "" || op.OperationID == "" || len(op.Tags) != 1 || ids[op.OperationID] {
				t.Errorf("%s %s: %+v", method, path, op)
			}
			ids[op.OperationID] = true
			for _, p := range op.Parameters {
				if p.Description == "" {
					t.Errorf("%s %s: parameter %s has no description", method, path, p.Name)
				}
			}
			if open := op.Security != nil && len(*op.Security) == 0; open != (path == "/livez" || path == "/readyz") {
				t.Errorf("%s %s: needs no token: %v", method, path, open)
			}
		}
	}
	whole := b.do("GET", "/openapi.json", "").body
	for _, ref := range regexp.MustCompile(`#/components/schemas/(\w+)`).FindAllStringSubmatch(whole, -1) {
		if _, ok := d.Components.Schemas[ref[1]]; !ok {
			t.Errorf("%s leads nowhere", ref[0])
		}
	}
	if spec := string(d.Components.Schemas["JobSubmission"]); !strings.Contains(spec, `"required":["spec"]`) {
		t.Errorf("JobSubmission does not require its spec:\n%s", spec)
	}
	// Signals in answers have SIG in front, wherever they are.
	for _, name := range []string{"Alloc", "Execution", "ExecResult", "ExecEvent"} {
		if s := string(d.Components.Schemas[name]); !regexp.MustCompile(`"signal":\{[^}]*as SIG[A-Z]+\.`).MatchString(s) {
			t.Errorf("%s does not say how signals are named:\n%s", name, s)
		}
	}
	spec := string(d.Components.Schemas["JobSpec"])
	for _, want := range []string{`Empty or 0s: no limit.","examples":["90s","1h30m"],"type":"string"}`, `"examples":["64MiB","1.5GiB"],"oneOf":[`, "passed as they are: no shell in between"} {
		if !strings.Contains(spec, want) {
			t.Errorf("JobSpec does not have %s:\n%s", want, spec)
		}
	}
	for _, no := range []string{"ErrorModel", "$schema", `["array","null"]`} {
		if strings.Contains(whole, no) {
			t.Errorf("the description has %s", no)
		}
	}
}

func TestDocsPage(t *testing.T) {
	b := newBench(t, 100)
	page := b.do("GET", "/docs", "")
	if page.StatusCode != 200 || !strings.HasPrefix(page.Header.Get("Content-Type"), "text/html") || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("%d %v", page.StatusCode, page.Header)
	}
	for _, ref := range regexp.MustCompile(`(?:href|src)="([^"#]+)"`).FindAllStringSubmatch(page.body, -1) {
		if a := b.do("GET", ref[1], ""); a.StatusCode != 200 || !strings.HasPrefix(ref[1], "/") {
			t.Errorf("%s: %d", ref[1], a.StatusCode)
		}
	}
	for _, path := range []string{"/docs", "/docs/docs.js", "/docs/docs.css"} {
		if a := b.do("GET", path, ""); strings.Contains(a.body, "//cdn") || strings.Contains(a.body, "https://") || strings.Contains(a.body, "innerHTML") {
			t.Errorf("%s loads from elsewhere, or writes markup", path)
		}
	}
	if a := b.do("GET", "/", ""); a.Header.Get("Location") != "/docs" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
}

func TestMetrics(t *testing.T) {
	b := newBench(t, 1000)
	scrape := func() map[string]string {
		out := map[string]string{}
		for line := range strings.SplitSeq(b.do("GET", "/metrics", "").body, "\n") {
			if name, v, ok := strings.Cut(line, "} "); ok {
				out[name+"}"] = v
			} else if name, v, ok := strings.Cut(line, " "); ok {
				out[name] = v
			}
		}
		return out
	}
	check := func(got map[string]string, want map[string]string) {
		t.Helper()
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s is %q, want %q", k, got[k], v)
			}
		}
	}
	check(scrape(), map[string]string{
		`muster_build_info{version="v-test"}`: "1", `muster_jobs{stage="live"}`: "0", `muster_jobs{stage="ended"}`: "0",
		`muster_members{status="waiting"}`: "0", `muster_allocations{status="running"}`: "0", `muster_allocations{status="ended"}`: "0",
		`muster_http_requests_total{code="201",route="POST /v1/jobs"}`: "0", `muster_http_requests_total{code="200",route="GET /v1/nodes"}`: "0",
		"muster_blob_bytes": "0", "muster_log_index": "1", "muster_nodes_price_per_hour": "0", "muster_jobs_unsettled": "0",
	})
	b.node("n1")
	b.node("n2")
	uid := b.submit("default", "j", 5)
	b.submit("default", "k", 2)
	ids := b.place(uid, "n1", 0, 3)
	b.report("n1", state.AllocUpdate{ID: ids[0], Status: muster.AllocRunning},
		state.AllocUpdate{ID: ids[1], Status: muster.AllocEnded, Outcome: muster.OutcomeSucceeded})
	b.do("POST", "/v1/jobs/default/k/stop", "")
	b.do("GET", "/v1/jobs/default/nope", "")
	b.do("GET", "/nothing", "")
	b.store(ids[0], "stdout", 0, "12345")
	check(scrape(), map[string]string{
		`muster_jobs{stage="live"}`: "1", `muster_jobs{stage="ended"}`: "1", "muster_jobs_unsettled": "1",
		`muster_members{status="waiting"}`: "2", `muster_members{status="placed"}`: "2", `muster_members{status="succeeded"}`: "1", `muster_members{status="stopped"}`: "2",
		"muster_members_running": "1", `muster_allocations{status="running"}`: "1", `muster_allocations{status="placed"}`: "1", `muster_allocations{status="ended"}`: "1",
		`muster_nodes{health="good",offering="big",stage="serving"}`: "2", "muster_nodes_price_per_hour": "1", "muster_blob_bytes": "5",
		`muster_http_requests_total{code="404",route="GET /v1/jobs/{namespace}/{name}"}`: "1", `muster_http_requests_total{code="404",route="none"}`: "1",
		`muster_http_requests_total{code="200",route="POST /v1/jobs/{namespace}/{name}/stop"}`: "1",
	})
	if got := scrape(); got["go_goroutines"] == "" || got["process_resident_memory_bytes"] == "" {
		t.Error("nothing of the runtime")
	}
}
