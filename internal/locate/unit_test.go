package locate

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The server of the package's unit is found by a user who has started none, and not by one who has.
func TestServerOfTheUnitIsFound(t *testing.T) {
	was := unitDir
	t.Cleanup(func() { unitDir = was })
	unitDir = t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	if p, err := Find(Given{}); !errors.Is(err, ErrUnknown) {
		t.Errorf("without a server: %+v, %v", p, err)
	}
	if err := WriteServer(unitDir, "127.0.0.1:4750"); err != nil {
		t.Fatal(err)
	}
	const secret = "0123456789abcdef"
	if err := os.WriteFile(filepath.Join(unitDir, tokenFile), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := Find(Given{}); err != nil || p.Address != "127.0.0.1:4750" || p.Token.Reveal() != secret {
		t.Errorf("the unit's: %+v, %v", p, err)
	}
	own := t.TempDir()
	if err := WriteCurrent("127.0.0.1:1", own); err != nil {
		t.Fatal(err)
	}
	if p, err := Find(Given{}); err != nil || p.Address != "127.0.0.1:1" || p.DataDir != own {
		t.Errorf("the user's own: %+v, %v", p, err)
	}
}
