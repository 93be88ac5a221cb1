package exec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
)

// example is the provider of docs/providers.md.
const example = "../../../docs/examples/provider-netns.sh"

type shellCloud struct{ dir string }

func (c shellCloud) Open(t *testing.T, owner string) cloud.Provider {
	t.Helper()
	program, err := filepath.Abs(example)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Name: "shell", Owner: owner, Command: []string{program}, Env: []string{"CLOUD_DIR=" + c.dir, "CLOUD_MACHINES=no"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The worked example of the documentation keeps the whole contract.
func TestConformance(t *testing.T) {
	for _, tool := range []string{"bash", "jq", "flock"} {
		if _, err := osexec.LookPath(tool); err != nil {
			t.Skipf("the example needs %s", tool)
		}
	}
	cloudtest.Run(t, time.Minute, func(t *testing.T) cloudtest.Cloud { return shellCloud{t.TempDir()} })
}

// script is a provider whose program is these lines of shell.
func script(t *testing.T, text string) *Provider {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cloud.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Name: "mine", Owner: "c1", Command: []string{"/bin/sh", path}, Access: cloud.Access{KeyFile: "/k", User: "root", KnownHosts: "/kh"}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// What a program does wrong is told in words that it can be mended by, and as a kind that does no harm.
func TestBadPrograms(t *testing.T) {
	for _, c := range []struct {
		name, text   string
		create, list muster.FaultKind
		words        []string
	}{
		{name: "garbage", text: `echo 'API error: token expired' >&2; echo hello`, create: muster.FaultAmbiguous, list: muster.FaultTransient,
			words: []string{"cannot be read", `"hello"`, "its stderr: API error: token expired"}},
		{name: "empty", text: `true`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"it is empty"}},
		{name: "misspelt field", text: `echo '{"instancez": []}'`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"instancez"}},
		{name: "two objects", text: `echo '{} {}'`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"something follows"}},
		{name: "exit status", text: `echo boom >&2; exit 3`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"exit status 3", "boom"}},
		{name: "temporary", text: `echo later >&2; exit 75`, create: muster.FaultTransient, list: muster.FaultTransient, words: []string{"exit status 75", "later"}},
		{name: "denied", text: `echo 'no credentials' >&2; exit 77`, create: muster.FaultAuth, list: muster.FaultAuth, words: []string{"no credentials"}},
		{name: "killed", text: `kill -9 $$`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"signal: killed"}},
		{name: "its own words", text: `echo '{"error": {"kind": "rate-limited", "message": "slow down", "after": 7}}'; exit 1`, create: muster.FaultRateLimited, list: muster.FaultRateLimited, words: []string{"slow down"}},
		{name: "unknown kind", text: `echo '{"error": {"kind": "tired", "message": "not now"}}'`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{`"tired"`, "not now"}},
		{name: "too much", text: `yes 2>/dev/null | head -c 70000000`, create: muster.FaultAmbiguous, list: muster.FaultTransient, words: []string{"more than 67108864 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := script(t, c.text)
			got := p.Create(t.Context(), []cloud.Intent{{Token: "t", Node: "n", Offering: "o"}})[0].Err
			_, list := p.List(t.Context(), "")
			for what, err := range map[string]error{string(c.create): got, string(c.list): list} {
				if err == nil || string(muster.KindOf(err)) != what {
					t.Errorf("of kind %s, not %s: %v", muster.KindOf(err), what, err)
					continue
				}
				for _, w := range c.words {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%q is not in: %v", w, err)
					}
				}
			}
		})
	}
}

// TestWordsOfAProgramAreBounded: what a program says is kept in the log and repeated in every attempt; an error of 20 MiB used to make a fact that the
// log refuses, so that its node was launched again and again without an end.
func TestWordsOfAProgramAreBounded(t *testing.T) {
	long := filepath.Join(t.TempDir(), "long")
	if err := os.WriteFile(long, bytes.Repeat([]byte("A"), 9<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(before, after string) string {
		return fmt.Sprintf(`printf '%s'; cat %s; printf '%s'`, before, long, after)
	}
	for _, c := range []struct{ name, text, kind, words string }{
		{"message", with(`{"error": {"kind": "capacity", "after": 1e300, "message": "`, `"}}`), "capacity", "AAA…"},
		{"message of a result", with(`{"results": [{"error": {"kind": "quota", "after": -1, "message": "`, `"}}]}`), "quota", "AAA…"},
		{"kind", with(`{"error": {"message": "why", "kind": "`, `"}}`), "ambiguous", "unknown kind"},
		{"scope", with(`{"error": {"kind": "capacity", "message": "AAA…", "scope": {"zone": "`, `"}}}`), "capacity", "AAA…"},
		{"id", with(`{"results": [{"instance": {"id": "`, `"}}]}`), "ambiguous", "results[0] has a value of 9437184 bytes"},
		{"address", with(`{"results": [{"instance": {"id": "i", "address": "`, `"}}]}`), "ambiguous", "results[0] has a value of 9437184 bytes"},
		{"misspelt field", with(`{"`, `": 1}`), "ambiguous", "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := script(t, c.text).Create(t.Context(), []cloud.Intent{{Token: "t", Node: "n", Offering: "o"}})[0].Err
			var f *muster.Fault
			if !errors.As(err, &f) || string(f.Kind) != c.kind || !strings.Contains(err.Error(), c.words) || f.After < 0 || f.After > maxAfter {
				t.Errorf("%T, %.300v", err, err)
			}
			if f != nil && len(err.Error())+len(f.Scope.String()) > 8<<10 {
				t.Errorf("%d bytes", len(err.Error())+len(f.Scope.String()))
			}
		})
	}
	p := script(t, with(`{"instances": [{"id": "i", "tags": {"muster-owner": "c1"}, "zone": "`, `"}]}`))
	if _, err := p.List(t.Context(), ""); !muster.IsKind(err, muster.FaultTransient) || !strings.Contains(err.Error(), "instances[0] has a value") {
		t.Errorf("%.300v", err)
	}
	p = script(t, with(`{"offers": [{"name": "o", "cpu": 1, "memory": "1GiB", "attributes": {"a": "`, `"}}]}`))
	if _, err := p.Offers(t.Context()); !muster.IsKind(err, muster.FaultTransient) || !strings.Contains(err.Error(), "offers[0] has a value") {
		t.Errorf("%.300v", err)
	}
}

// Offerings say their devices, and no more of them than a node may have.
func TestOfferingsHaveDevices(t *testing.T) {
	offers := func(devices string) ([]muster.Offering, error) {
		return script(t, `echo '{"offers": [{"name": "o", "cpu": 1, "memory": "1GiB", "devices": `+devices+`}]}'`).Offers(t.Context())
	}
	got, err := offers(`[{"model": "A100"}, {"kind": "fpga", "count": 2, "shared": true}]`)
	if err != nil || len(got) != 1 || !slices.Equal(got[0].Devices, []muster.Device{{Kind: "gpu", Model: "A100", Count: 1}, {Kind: "fpga", Count: 2, Shared: true}}) {
		t.Errorf("%+v, %v", got, err)
	}
	for devices, want := range map[string]string{
		`[{"count": -1}]`: "-1 devices of a kind", `[{"count": 65}]`: "65 devices of a kind", `[{"count": 60}, {"count": 5}]`: "65 devices; it may have at most 64", `[{"number": 1}]`: "cannot be read",
	} {
		if _, err := offers(devices); !muster.IsKind(err, muster.FaultTransient) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", devices, err)
		}
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	p, err := New(Config{Name: "mine", Owner: "c1", Command: []string{"/nowhere/cloud"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(t.Context(), []cloud.Intent{{Token: "t"}})[0].Err; !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "/nowhere/cloud") {
		t.Error(err)
	}
}

// A program that hangs is ended with all that it started, and what it was at is not known.
func TestProgramThatHangs(t *testing.T) {
	p := script(t, `echo waiting >&2; sleep 1000 & sleep 1000`)
	p.cfg.Timeout = 100 * time.Millisecond
	err := p.Create(t.Context(), []cloud.Intent{{Token: "t"}})[0].Err
	if !muster.IsKind(err, muster.FaultAmbiguous) || !strings.Contains(err.Error(), "did not end within 100ms") {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Create(ctx, []cloud.Intent{{Token: "t"}})[0].Err; !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("not asked at all: %v", err)
	}
}

// A batch of which the program answers for some only, and one answer for another's token.
func TestResultsThatDoNotFit(t *testing.T) {
	p := script(t, `echo '{"results": [{"instance": {"id": "i-1", "address": "h"}}, {"instance": {"id": "i-2", "tags": {"muster-owner": "c1", "muster-token": "x"}}}, {"error": {"kind": "capacity", "message": "sold out", "scope": {"zone": "a"}}}]}'`)
	got := p.Create(t.Context(), []cloud.Intent{{Token: "t1", Node: "n1", Offering: "o", Zone: "z"}, {Token: "t2"}, {Token: "t3"}, {Token: "t4"}})
	if i := got[0].Instance; got[0].Err != nil || i.ID != "i-1" || i.Tags.Node != "n1" || i.Offering != "o" || i.Zone != "z" || i.Market != muster.OnDemand {
		t.Errorf("what is not said is as it was asked for: %+v", got[0])
	}
	for n, kind := range map[int]muster.FaultKind{1: muster.FaultAmbiguous, 2: muster.FaultCapacity, 3: muster.FaultAmbiguous} {
		if muster.KindOf(got[n].Err) != kind {
			t.Errorf("%d: %v", n, got[n].Err)
		}
	}
	if f := new(muster.Fault); !asFault(got[2].Err, &f) || f.Scope != (muster.Scope{Provider: "mine", Zone: "a"}) {
		t.Errorf("%+v", got[2].Err)
	}
}

func asFault(err error, to **muster.Fault) bool {
	f, ok := err.(*muster.Fault)
	*to = f
	return ok
}

// What is of another owner, or of nobody, is not seen, whatever the program lists. A list that is not said
// to be complete is not, and neither is a page with a next one.
func TestListsOfPrograms(t *testing.T) {
	p := script(t, `echo '{"instances": [{"id": "i-1", "tags": {"muster-owner": "c1", "muster-token": "t"}}, {"id": "i-2", "tags": {"muster-owner": "c2"}}, {"id": "i-3"}]}'`)
	got, err := p.List(t.Context(), "")
	if err != nil || len(got.Instances) != 1 || got.Instances[0].ID != "i-1" || got.Complete {
		t.Errorf("%+v, %v", got, err)
	}
	p = script(t, `echo '{"instances": [], "next": "2", "complete": true}'`)
	if got, err := p.List(t.Context(), ""); err != nil || got.Complete || got.Next != "2" {
		t.Errorf("%+v, %v", got, err)
	}
}

// The answer to a create was lost with the server. The next one, which knows only the token, gets the same instance.
func TestTokenFindsTheInstanceOfALostAnswer(t *testing.T) {
	if _, err := osexec.LookPath("jq"); err != nil {
		t.Skip("the example needs jq")
	}
	c := shellCloud{t.TempDir()}
	in := []cloud.Intent{{Token: "t", Node: "n", Pool: "p", Offering: "small"}}
	first := c.Open(t, "c1").Create(t.Context(), in)[0]
	again := c.Open(t, "c1").Create(t.Context(), in)[0]
	if first.Err != nil || again.Err != nil || first.Instance != again.Instance {
		t.Errorf("%+v and %+v", first, again)
	}
}

// The way to an instance is the program's word, and what the configuration says besides.
func TestAccess(t *testing.T) {
	tags := `"tags": {"muster-owner": "c1", "muster-token": "t"}`
	p := script(t, `echo '{"complete": true, "instances": [{"id": "i-1", "address": "a:23", "user": "admin", "host_keys": ["ssh-ed25519 AAAA"], `+tags+`}, {"id": "i-2", "address": "b", `+tags+`}, {"id": "i-3", `+tags+`}]}'`)
	a, err := p.Access(t.Context(), "i-1")
	if err != nil || a.Address != "a:23" || a.User != "admin" || len(a.HostKeys) != 1 || a.KnownHosts != "" || a.KeyFile != "/k" {
		t.Errorf("%+v, %v", a, err)
	}
	if a, err = p.Access(t.Context(), "i-2"); err != nil || a.Address != "b" || a.User != "root" || a.KnownHosts != "/kh" {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := p.Access(t.Context(), "i-3"); !muster.IsKind(err, muster.FaultUnavailable) {
		t.Errorf("without an address: %v", err)
	}
	p.asked = time.Time{}
	if _, err := p.Access(t.Context(), "i-4"); !muster.IsKind(err, muster.FaultNotFound) {
		t.Errorf("of none: %v", err)
	}
}
