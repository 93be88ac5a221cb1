package isolation

import (
	"crypto/sha256"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// names are those of all attempts of the probe.
func names(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command(probePath, "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// verdicts reads what the probe printed.
func verdicts(printed string) map[string][2]string {
	all := map[string][2]string{}
	for line := range strings.Lines(printed) {
		if f := strings.SplitN(strings.TrimSuffix(line, "\n"), "\t", 3); len(f) == 3 {
			all[f[0]] = [2]string{f[1], f[2]}
		}
	}
	return all
}

// check makes a test of each attempt.
func check(t *testing.T, names []string, printed, stderr string) {
	t.Helper()
	all := verdicts(printed)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			v, told := all[name]
			switch {
			case !told:
				t.Errorf("there was no answer of it; stderr: %.2000s", stderr)
			case v[0] == "absent":
				t.Skip(v[1])
			case v[0] != "held":
				t.Error(v[1])
			}
		})
	}
}

// TestFromInside tries everything as root of a sandbox, and then as somebody without any rights.
func TestFromInside(t *testing.T) {
	all := names(t)
	before := digest(t, initPath)
	everywhere(t, func(n *node) {
		unharmed := n.bystander()
		for _, user := range []string{"", "1000:1000"} {
			n.T.Run("user "+user, func(t *testing.T) {
				inner := *n
				inner.T = t
				c := inner.config("/probe", "all")
				c.Env = append(c.Env, n.facts()...)
				c.Container.User = user
				if user != "" {
					if err := os.Chmod(c.Container.Shared, 0o777); err != nil {
						t.Fatal(err)
					}
				}
				s := inner.start(c)
				result := inner.wait(s)
				if result.ExitCode != 0 || result.Failure != nil {
					t.Errorf("the probe ended with %+v", result)
				}
				check(t, all, output(t, s, "stdout"), output(t, s, "stderr"))
			})
		}
		unharmed()
		if !slices.Equal(digest(n.T, initPath), before) {
			n.Error("the program of init was changed from inside")
		}
	})
}

func digest(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// TestAttemptsWorkOutside proves the attempts themselves: where nothing stands against them, they must succeed, or they show nothing.
// Those that find nothing to be denied on an ordinary machine are not in the list.
func TestAttemptsWorkOutside(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("outside, only root may do what is tried")
	}
	must := []string{
		"mount", "namespace-unshare", "namespace-clone", "namespace-clone3", "bpf", "machine-control", "host-name", "resources-reserved", "personality",
		"init-look", "init-trace", "init-limits", "kernel-settings", "node-files", "chroot-and-up", "file-handles", "device-nodes",
		"capabilities", "no-new-privileges", "system-call-filter", "sockets-raw",
	}
	n := &node{T: t, root: t.TempDir(), token: "token-outside"}
	n.makeStrangers()
	// A program that sleeps stands for init; names below / of a private mount namespace stand for the sandbox's.
	cmd := exec.Command("unshare", "--mount", "--uts", "--ipc", "--propagation", "private", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c",
		`mount -t tmpfs x /mnt; mkdir -p /mnt/tmp; "$@"; exit 0`, "sh", probePath, "each")
	cmd.Args = append(cmd.Args, must...)
	cmd.Env = append(os.Environ(), n.facts()...)
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	all := verdicts(string(out))
	if len(all) == 0 {
		t.Skipf("no namespaces to try it in: %v: %s", err, out)
	}
	for _, name := range must {
		t.Run(name, func(t *testing.T) {
			switch v, told := all[name]; {
			case !told:
				t.Errorf("there was no answer of it: %s", out)
			case v[0] == "absent":
				t.Skip(v[1])
			case v[0] != "BROKEN":
				t.Errorf("with nothing against it, it says: %s", v[1])
			}
		})
	}
}
