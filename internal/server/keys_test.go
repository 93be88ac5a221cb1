package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKeysStay(t *testing.T) {
	dir := t.TempDir()
	first, err := openKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := openKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	if *again != *first {
		t.Errorf("%v, then %v", first.authorized, again.authorized)
	}
	for _, name := range []string{loginKey, hostSecret} {
		st, err := os.Stat(filepath.Join(dir, keysDir, name))
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, keysDir, hostSecret), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeys(dir); err == nil || !strings.Contains(err.Error(), "put back the file") {
		t.Errorf("a short secret: %v", err)
	}
}
