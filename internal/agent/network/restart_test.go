package network

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// agentArgument makes this program an agent that takes networks, starts
// processes in some, says so, and goes on taking and releasing until it is killed.
const agentArgument = "run-an-agent"

func runAgent(args []string) {
	p, err := New(Config{Dir: args[0], Name: "test", Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = p.Restore(context.Background(), nil)
	}
	if err != nil {
		panic(err)
	}
	go func() { panic(p.Run(context.Background())) }()
	for _, id := range []string{"kept", "dropped"} {
		n, err := p.Take(context.Background(), id, Spec{Mode: muster.NetworkBridge, Ports: []int{80}, Egress: prefixes("198.51.100.0/24", "10.0.0.0/8")})
		if err != nil {
			panic(err)
		}
		cmd := exec.Command("sleep", "1000")
		if err := within(n.Path, cmd.Start); err != nil {
			panic(err)
		}
		fmt.Println(cmd.Process.Pid, n.IP)
	}
	for i := 0; ; i++ {
		id := "churn-" + strconv.Itoa(i)
		if _, err := p.Take(context.Background(), id, Spec{Mode: muster.NetworkBridge, Egress: prefixes("198.51.100.0/24")}); err != nil {
			panic(err)
		}
		if i >= 3 {
			if err := p.Release(context.Background(), "churn-"+strconv.Itoa(i-3)); err != nil {
				panic(err)
			}
		}
		fmt.Println("churned", i)
	}
}

// An agent is killed with -9 while it takes and releases; the next one knows
// what is to be kept and removes the rest.
func TestRestoreAfterKill(t *testing.T) {
	needNode(t)
	listen(t, theWorld.path(), at(farAddr, "80"))
	before := seen(t)
	for round := range 6 {
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe", agentArgument, dir)
		cmd.Env = append(os.Environ(), apart+"=1")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		var pids []int
		var ips []string
		for range 2 {
			if !lines.Scan() {
				t.Fatal("the agent ended by itself")
			}
			pid, ip, _ := strings.Cut(lines.Text(), " ")
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			pids, ips = append(pids, n), append(ips, ip)
		}
		for range round * 2 {
			lines.Scan()
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		restored(t, dir, pids, ips)
	}
	if after := seen(t); !slices.Equal(before, after) {
		t.Errorf("left on the host:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

func restored(t *testing.T, dir string, pids []int, ips []string) {
	t.Helper()
	for _, pid := range pids {
		defer func() {
			_ = syscall.Kill(pid, unix.SIGKILL)
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}()
	}
	if err := os.WriteFile(filepath.Join(dir, "mutest-0ff0.json"), []byte(`{"id":"half`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Dir: dir, Name: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Restore(t.Context(), []string{"kept", "unknown"}); err != nil {
		t.Fatal(err)
	}
	links, err := ownLinks(p.names)
	if err != nil {
		t.Fatal(err)
	}
	if ids := p.ids(); !slices.Equal(ids, []string{"kept"}) || len(links) != 1 || len(recordsIn(t, p)) != 1 || elements(t, p) != 4 {
		t.Errorf("known: %q, interfaces %v, records %q, %d elements", ids, links, recordsIn(t, p), elements(t, p))
	}
	kept := fmt.Sprintf("/proc/%d/ns/net", pids[0])
	reaches(t, kept, at(farAddr, "80"))
	refused(t, kept, at(otherAddr, "80"))
	listen(t, kept, at("0.0.0.0", "80"))
	reaches(t, home(), at(ips[0], "80"))
	if from, err := dial(fmt.Sprintf("/proc/%d/ns/net", pids[1]), at(farAddr, "80")); err == nil {
		t.Errorf("what was not kept still reaches out, as %s", from)
	}
	fresh := take(t, p, "fresh", bridge())
	if fresh.IP.String() == ips[0] {
		t.Errorf("the kept one's address %s is given out again", fresh.IP)
	}
	for _, id := range []string{"kept", "fresh"} {
		if err := p.Release(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if n := elements(t, p); n != 0 {
		t.Errorf("%d elements are left", n)
	}
	if err := RemoveAll("test", dir); err != nil {
		t.Error(err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 0 {
		t.Errorf("left in the directory: %v %v", files, err)
	}
	if err := RemoveAll("test", dir); err != nil {
		t.Errorf("a second time: %v", err)
	}
}
