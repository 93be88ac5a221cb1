package contexts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/clitest"
)

func TestContexts(t *testing.T) {
	config, data := t.TempDir(), t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("MUSTER_TOKEN", "")
	// No server is asked, and none is named to the commands, as clitest would.
	run := func(code int, stdin, args, stdout, stderr string) {
		t.Helper()
		var out, errs clitest.Buffer
		a := &cli.App{Stdin: strings.NewReader(stdin), Stdout: &out, Stderr: &errs, Signals: make(chan os.Signal)}
		got := a.Execute(clitest.Root(Commands)(a), strings.Fields(args))
		clitest.Result{Code: got, Stdout: out.String(), Stderr: errs.String()}.Check(t, code, stdout, stderr)
	}
	run(0, "", "context list", "   CONTEXT  ADDRESS        DATA DIRECTORY\n*  local    never started  -\n", "")
	run(0, "the secret\n", "context add prod --addr https://prod --token-stdin --use", "", "")
	run(0, "", "context add here --data-dir "+data, "", "")
	run(0, "", "context list", "   CONTEXT  ADDRESS        DATA DIRECTORY\n   local    never started  -\n   here     never started  "+data+"\n*  prod     https://prod   -\n", "")
	run(0, "", "context list --json", strings.Join([]string{
		"[", "  {", `    "name": "local",`, `    "current": false,`, `    "has_token": false`, "  },",
		"  {", `    "name": "here",`, `    "current": false,`, `    "data_dir": "` + data + `",`, `    "has_token": true`, "  },",
		"  {", `    "name": "prod",`, `    "current": true,`, `    "address": "https://prod",`, `    "has_token": true`, "  }", "]", "",
	}, "\n"), "")
	b, err := os.ReadFile(filepath.Join(config, "muster", "contexts.json"))
	if err != nil || !strings.Contains(string(b), `"token":"the secret"`) {
		t.Errorf("%s, %v", b, err)
	}
	// A directory says where its server listens.
	if err := os.WriteFile(filepath.Join(data, "server.json"), []byte(`{"address": "127.0.0.1:4999"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	run(0, "", "context list", "   CONTEXT  ADDRESS         DATA DIRECTORY\n   local    never started   -\n   here     127.0.0.1:4999  "+data+"\n*  prod     https://prod    -\n", "")
	run(0, "", "context use here", "", "")
	run(1, "", "context use nope", "", "muster: there is no context \"nope\"; there are local, here, prod\n")
	run(0, "", "context remove here", "", "")
	run(1, "", "context remove here", "", "muster: there is no context \"here\"; .*\n")
	run(0, "", "context list", "   CONTEXT  ADDRESS        DATA DIRECTORY\n*  local    never started  -\n   prod     https://prod   -\n", "")
	run(2, "", "context add local --addr a:1", "", "muster: the name local stands for .*\n")
	run(2, "", "context add Web --addr a:1", "", "muster: context name \"Web\" .*\n")
	run(2, "", "context add x", "", "muster: say where the server is: .*\n")
	run(2, "", "context add x --addr a:1 --token-stdin", "", "muster: stdin has no token\n")
}
