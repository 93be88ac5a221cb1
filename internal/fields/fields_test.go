package fields

import (
	"reflect"
	"slices"
	"testing"
)

type inner struct {
	Env     int `json:"env,omitempty"`
	Command int `json:"command"`
}

type outer struct {
	Name int `json:"name"`
	inner
	KillGrace int `json:"kill_grace"`
	Hidden    int `json:"-"`
}

// Fields of an embedded struct stand among the others.
func TestEmbeddedFieldsAreFields(t *testing.T) {
	typ := reflect.TypeFor[outer]()
	if got, want := Names(typ), []string{"name", "env", "command", "kill_grace"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f, ok := Named(typ, "command")
	if !ok || !slices.Equal(f.Index, []int{1, 1}) {
		t.Errorf("command is %v, %v", f.Index, ok)
	}
	for _, name := range []string{"", "-", "inner", "Hidden"} {
		if _, ok := Named(typ, name); ok {
			t.Errorf("%q is a field", name)
		}
	}
}

func TestNearest(t *testing.T) {
	known := Names(reflect.TypeFor[outer]())
	for name, want := range map[string]string{
		"killGrace": "kill_grace", "kil_grace": "kill_grace", "cmd": "command", "environment": "env", "nmae": "name", "zzz": "", "": "",
		"commnad": "command",
	} {
		if got := Nearest(name, known); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	// A word of its own is no slip of another.
	for name, known := range map[string][]string{"version": {"now", "reason", "who"}, "outputs": {"inputs", "env"}, "spread": {"ready", "user"}} {
		if got := Nearest(name, known); got != "" {
			t.Errorf("%q: got %q", name, got)
		}
	}
}
