package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

func TestPoseidonToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for text, want := range map[string]string{
		"0123456789abcdef\n": "0123456789abcdef", " 0123456789abcdef": "0123456789abcdef", "": "", "\n": "", "short": "", "0123456789abcdef\n0123456789abcdef\n": "", "0123456789abcdeü": "",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := poseidonToken(&api.PoseidonConfig{TokenFile: file})
		if (err == nil) != (want != "") || got.Reveal() != want {
			t.Errorf("%q: %q %v", text, got.Reveal(), err)
		}
		if err != nil && (!strings.Contains(err.Error(), file) || text != "" && strings.Contains(err.Error(), strings.TrimSpace(text+"x"))) {
			t.Errorf("told was %v", err)
		}
	}
	if _, err := poseidonToken(&api.PoseidonConfig{TokenFile: file + ".none"}); err == nil {
		t.Error("a file that is missing is no error")
	}
	if got, err := poseidonToken(&api.PoseidonConfig{Token: muster.NewSecret("x")}); err != nil || got.Reveal() != "x" {
		t.Error(got, err)
	}
	// None: who asks shows the server's own.
	if got, err := poseidonToken(&api.PoseidonConfig{}); err != nil || !got.IsZero() {
		t.Error(got, err)
	}
}
