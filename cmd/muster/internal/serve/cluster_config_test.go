package serve

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

func TestClusterConfig(t *testing.T) {
	s := newServer(t)
	s.Muster(nil, "config", "show").Check(t, 1, "", "muster: no configuration is in force yet\n")
	s.Applied = &api.AppliedConfig{
		Version: 3, Applied: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), Index: 9, Server: "s-a", How: "reload", Self: "s-b",
		Config:  json.RawMessage(`{"providers":[{"name":"l","type":"local","offerings":[{"name":"small","cpu":1,"memory":"1GiB"}]}],"pools":[{"name":"p","provider":"l","max":2,"meta":{"on":"1.0"}}]}`),
		Differs: []api.ConfigChange{{Field: "pools[p].max", From: "2", To: "7"}},
	}
	text := `# version 3, applied 2026-05-04T03:02:01Z by a reload on server s-a
providers:
  - name: l
    type: local
    offerings:
      - name: small
        cpu: 1
        memory: 1GiB
pools:
  - name: p
    provider: l
    max: 2
    meta:
      on: "1.0"
`
	s.Muster(nil, "config", "show").Check(t, 0, text, "muster: the file of server s-b differs in 1 field; `muster config diff` shows them\n")
	s.Muster(nil, "config", "diff").Check(t, 0, "The file of server s-b differs from the configuration in force (version 3, applied 2026-05-04T03:02:01Z by a reload on server s-a):\n  pools[p].max: 2 becomes 7\n", "")
	// What show prints is what apply reads.
	shown := filepath.Join(t.TempDir(), "shown.yaml")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(shown, text)
	s.Muster(nil, "config", "apply", shown, "--if-version", "3").Check(t, 0, "Version 4 is in force. Changed:\n  pools[p] is removed (was there)\n    WARNING: ITS NODES ARE DRAINED\n", "")
	if q := s.Asked[0]; q.DryRun || q.Config.Pools[0].Max != 2 || q.Config.Pools[0].Meta["on"] != "1.0" || *q.IfVersion != 3 {
		t.Errorf("sent: %+v", q)
	}
	s.Muster(nil, "config", "apply", shown, "--if-version", "2").Check(t, 1, "", "muster: the configuration in force has another version\n")
	// Of a server's whole file only the cluster's part leaves this program.
	path := filepath.Join(t.TempDir(), "muster.yaml")
	whole := "data_dir: /d\nlisten: 127.0.0.1:1\nregistries: [{host: r.example.org, username: u, password: geheim}]\nproviders:\n- {name: h, type: hetzner, image: debian-12, locations: [fsn1], token_file: /secret/token}\npools:\n- {name: p, provider: h}\n"
	write(path, whole)
	s.Muster(nil, "config", "diff", path).Check(t, 0, "Applying "+path+" to version 3 would change:\n  pools[p] is removed (was there)\n    WARNING: ITS NODES ARE DRAINED\n", "")
	sent := s.Asked[len(s.Asked)-1]
	b, err := json.Marshal(sent)
	if err != nil || !sent.DryRun || strings.Contains(string(b), "secret") || strings.Contains(string(b), "geheim") || strings.Contains(string(b), "data_dir") || strings.Contains(string(b), "127.0.0.1") {
		t.Errorf("sent: %s %v", b, err)
	}
	n := len(s.Asked)
	write(shown, "providers: [{name: l, type: local}]\npools:\n- {name: p, provider: nobody}\n")
	s.Muster(nil, "config", "apply", shown).Check(t, 2, "", `(?s)muster: .*shown.yaml.*provider is "nobody".*`)
	if len(s.Asked) != n {
		t.Error("a wrong file was sent")
	}
}
