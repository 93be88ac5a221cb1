package locate

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestEnsureToken(t *testing.T) {
	dir := t.TempDir()
	// Many at once agree on one.
	var wg sync.WaitGroup
	tokens := make([]string, 8)
	for i := range tokens {
		wg.Go(func() {
			s, err := EnsureToken(dir)
			if err != nil {
				t.Error(err)
			}
			tokens[i] = s.Reveal()
		})
	}
	wg.Wait()
	again, err := EnsureToken(dir)
	if err != nil || len(again.Reveal()) != 64 {
		t.Fatalf("%d characters, %v", len(again.Reveal()), err)
	}
	info, err := os.Stat(filepath.Join(dir, "token"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	for _, token := range tokens {
		if token != again.Reveal() {
			t.Errorf("two tokens were handed out")
		}
	}
}

func TestTokenIsRefused(t *testing.T) {
	for content, tt := range map[string]struct {
		mode os.FileMode
		want string
	}{
		"0123456789abcdef\n":       {0o644, "can be read by others (mode 0644)"},
		"short\n":                  {0o600, "holds no token"},
		"":                         {0o600, "holds no token"},
		"two words in it, that is": {0o600, "holds no token"},
	} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(content), tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := EnsureToken(filepath.Dir(path))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v", content, err)
		}
		if content != "" && err != nil && strings.Contains(err.Error(), strings.TrimSpace(content)) {
			t.Errorf("shows the token: %v", err)
		}
	}
}

func TestFind(t *testing.T) {
	config, data, open := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	if _, err := Find(Given{}); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
	if _, err := Find(Given{DataDir: data}); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "no server has run there") {
		t.Error(err)
	}
	token, err := EnsureToken(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(WriteServer(data, "127.0.0.1:1"), WriteServer(open, "127.0.0.1:2"), WriteCurrent("127.0.0.1:1", data)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(config, "muster", "current.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	env := map[string]string{"MUSTER_ADDR": "10.0.0.1:9", "MUSTER_TOKEN": "of-the-environment"}
	for _, tt := range []struct {
		name  string
		given Given
		want  Place
	}{
		{"nothing given", Given{}, Place{Address: "127.0.0.1:1", Token: token, DataDir: data}},
		{"data directory", Given{DataDir: data}, Place{Address: "127.0.0.1:1", Token: token, DataDir: data}},
		{"without authentication", Given{DataDir: open}, Place{Address: "127.0.0.1:2", DataDir: open}},
		{"address of the current one", Given{Address: "http://127.0.0.1:1/"}, Place{Address: "http://127.0.0.1:1/", Token: token, DataDir: data}},
		{"another address", Given{Address: "127.0.0.1:3"}, Place{Address: "127.0.0.1:3"}},
		{"environment", Given{}.Environment(func(k string) string { return env[k] }), Place{Address: "10.0.0.1:9"}},
		{"flag before environment", Given{DataDir: data}.Environment(func(k string) string { return env[k] }), Place{Address: "127.0.0.1:1", DataDir: data}},
	} {
		got, err := Find(tt.given)
		if err != nil || got.Address != tt.want.Address || got.DataDir != tt.want.DataDir {
			t.Errorf("%s: %+v, %v", tt.name, got, err)
		}
		want := tt.want.Token.Reveal()
		if tt.given.Token != "" {
			want = tt.given.Token
		}
		if got.Token.Reveal() != want {
			t.Errorf("%s: another token", tt.name)
		}
	}
	if err := RemoveCurrent(open); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCurrent(); err != nil {
		t.Errorf("removed by another server: %v", err)
	}
	if err := RemoveCurrent(data); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCurrent(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
