package clouds

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/imagetest"
)

// openQemu is machines of QEMU on this host, with real cloud-init, cgroup v2 and crun. There is no API
// between the server and them. One market is called spot, and a file stands for the cloud's notice.
func openQemu(t *testing.T, _ string) *stand {
	image := os.Getenv("MUSTER_VM_IMAGE")
	if image == "" {
		t.Skip("MUSTER_VM_IMAGE names no image; make vm-image builds one")
	}
	dir := ""
	machines := func() []string {
		found, _ := filepath.Glob(filepath.Join(dir, "m-*"))
		return found
	}
	return &stand{
		oci:    true,
		placed: func(data string) { dir = filepath.Join(data, "cloud") },
		provider: func(name, _ string) string {
			return fmt.Sprintf(`- name: %s
  type: qemu
  image: %s
  offerings:
  - {name: small, cpu: 2, memory: 1GiB, disk: 4GiB, market: spot, price: 1}
  - {name: dear, cpu: 2, memory: 1GiB, disk: 4GiB, price: 2}
`, name, image)
		},
		cut: func(t *testing.T, id string, off bool) {
			t.Helper()
			sig := syscall.SIGCONT
			if off {
				sig = syscall.SIGSTOP
			}
			b, err := os.ReadFile(filepath.Join(dir, id, "pid"))
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(strings.Fields(string(b))[0])
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		},
		take: func(id string, in time.Duration) bool {
			at := time.Now().Add(in).UTC().Format(time.RFC3339)
			return os.WriteFile(filepath.Join(dir, id, "notice"), []byte(at+"\n"), 0o600) == nil
		},
		// A machine is its directory, which goes with it; what is left of one has another name.
		books: func(testing.TB) books {
			b := books{byToken: map[string][]string{}}
			for _, path := range machines() {
				b.machines = append(b.machines, filepath.Base(path))
			}
			left, _ := filepath.Glob(filepath.Join(dir, "gone-*"))
			b.leftovers = left
			return b
		},
	}
}

// container runs a job from an image in one of the machines.
func (w *world) container() {
	w.t.Helper()
	file := filepath.Join(w.dir, "busybox.tar")
	imagetest.WriteArchive(w.t, file, "busybox:e2e", imagetest.Busybox(w.t))
	w.succeeds("image", "load", file)
	out := w.succeeds("run", "--name", "box", "--image", "busybox:e2e", "--", "sh", "-c", "test $$ = 1 || cat /proc/1/comm; cat /proc/1/cgroup; uname -r")
	if !strings.Contains(out, "0::/") {
		w.t.Errorf("the container is not in a cgroup of version 2:\n%s", out)
	}
	w.ended("box")
}
