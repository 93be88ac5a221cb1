package locate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Which server is meant: what is given goes before contexts, and these before the one started last.
func TestFindInContext(t *testing.T) {
	config, data := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	if err := errors.Join(WriteCurrent("127.0.0.1:1", data), WriteServer(data, "127.0.0.1:2")); err != nil {
		t.Fatal(err)
	}
	all := &Contexts{Current: "prod", Contexts: []Context{{Name: "prod", Address: "https://prod", Token: "secret"}, {Name: "here", DataDir: data}}}
	if err := all.Write(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		given Given
		env   map[string]string
		want  string // address, and the token
		err   string
	}{
		{want: "https://prod secret"},
		{given: Given{Context: "here"}, want: "127.0.0.1:2 "},
		{given: Given{Context: "local"}, want: "127.0.0.1:1 "},
		{given: Given{Context: "nope"}, err: `there is no context "nope"; there are local, prod, here`},
		{given: Given{Address: "a:1"}, want: "a:1 "},
		{given: Given{DataDir: data}, want: "127.0.0.1:2 "},
		{given: Given{Address: "a:1", Context: "prod"}, err: "a context says where the server is"},
		{env: map[string]string{"MUSTER_CONTEXT": "here"}, want: "127.0.0.1:2 "},
		{env: map[string]string{"MUSTER_ADDR": "b:1", "MUSTER_CONTEXT": "here"}, want: "b:1 "},
		{given: Given{Context: "prod"}, env: map[string]string{"MUSTER_ADDR": "b:1"}, want: "https://prod secret"},
		{given: Given{Token: "other"}, want: "https://prod other"},
	} {
		p, err := Find(tt.given.Environment(func(name string) string { return tt.env[name] }))
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v: %v", tt, err)
			}
			continue
		}
		if got := p.Address + " " + p.Token.Reveal(); err != nil || got != tt.want {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
	// Tokens that others can read are no secrets.
	if err := os.Chmod(filepath.Join(config, "muster", "contexts.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(Given{}); err == nil || !strings.Contains(err.Error(), "can be read by others") {
		t.Errorf("%v", err)
	}
}
