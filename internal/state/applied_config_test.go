package state

import (
	"bytes"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

// apply proposes a configuration and returns what is in force after it.
func applied(t *testing.T, l *log, f *ConfigApplied) *AppliedConfig {
	t.Helper()
	l.must(f)
	return ConfigInForce(l.s.Latest())
}

func TestConfigurationsHaveVersions(t *testing.T) {
	l := newLog(t)
	if c := ConfigInForce(l.s.Latest()); c != nil {
		t.Fatalf("in a new state: %+v", c)
	}
	seen := l.s.Feed().Last()
	first := applied(t, l, &ConfigApplied{Content: `{"a":1}`, Server: "s1", How: ConfigFirst})
	if first.Version != 1 || first.Server != "s1" || first.How != ConfigFirst || first.Applied == 0 || first.Index != l.s.Latest().Index() {
		t.Errorf("the first: %+v", first)
	}
	changes, _, err := l.s.Feed().After(AfterIndex(seen), 10)
	if err != nil || len(changes) != 1 || changes[0].Verb != VerbConfigApplied || !changes[0].Config {
		t.Errorf("changes: %+v %v", changes, err)
	}
	// The same again, as a leader proposes that does not know whether it was committed.
	if again := applied(t, l, &ConfigApplied{Content: `{"a":1}`, Server: "s2", How: ConfigReload}); again != first {
		t.Errorf("the same again: %+v", again)
	}
	second := applied(t, l, &ConfigApplied{Content: `{"a":2}`, Server: "s2", How: ConfigRequest, Over: "sha256:x"})
	if second.Version != 2 || second.Server != "s2" || second.Over != "sha256:x" {
		t.Errorf("the second: %+v", second)
	}
	// The operator corrects the file: what was passed over is that no more.
	if same := applied(t, l, &ConfigApplied{Content: `{"a":2}`, Server: "s3", How: ConfigReload}); same.Version != 2 || same.Server != "s2" || same.Over != "" {
		t.Errorf("with the file corrected: %+v", same)
	}
	restored, _ := New(16)
	if err := restored.Restore(bytes.NewReader(image(t, l.s))); err != nil {
		t.Fatal(err)
	}
	if got, want := ConfigInForce(restored.Latest()), ConfigInForce(l.s.Latest()); *got != *want {
		t.Errorf("restored: %+v, want %+v", got, want)
	}
}

func TestConfigurationsAreRefused(t *testing.T) {
	l := newLog(t)
	l.must(&ConfigApplied{Content: "{}", How: ConfigFirst})
	before := ConfigInForce(l.s.Latest())
	zero, one := uint64(0), uint64(1)
	for name, c := range map[string]struct {
		f    ConfigApplied
		kind muster.FaultKind
		want string
	}{
		"empty":     {ConfigApplied{}, muster.FaultInvalid, "is empty"},
		"too large": {ConfigApplied{Content: strings.Repeat("x", maxConfig+1)}, muster.FaultInvalid, "it may have 4MiB"},
		"overtaken": {ConfigApplied{Content: "{ }", IfVersion: &zero}, muster.FaultConflict, "has version 1, not 0"},
	} {
		if _, err := l.do(&c.f); !muster.IsKind(err, c.kind) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := ConfigInForce(l.s.Latest()); now != before {
		t.Errorf("a refused one changed it: %+v", now)
	}
	l.must(&ConfigApplied{Content: "{ }", IfVersion: &one})
	if now := ConfigInForce(l.s.Latest()); now.Version != 2 {
		t.Errorf("applied to the version in force: %+v", now)
	}
}
