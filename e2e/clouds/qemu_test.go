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
	// machines are the directories of machines, or the files of that name in them.
	machines := func(file string) []string {
		found, _ := filepath.Glob(filepath.Join(dir, "m-*", file))
		return found
	}
	return &stand{
		oci: true,
		// Without KVM a machine needs minutes to boot, and all that boot at once share the processors:
		// then it is silent for seconds as well. So there are few, and they stay for the next step.
		boot: "30m", grace: "1m", idle: "1h", most: 6, breakers: 4, jobCPU: "0.4",
		creating: []moment{
			{"a create has its directory", func() bool { return len(machines("")) > 0 }},
			{"a create has written its record", func() bool { return len(machines("instance.json")) > 0 }},
			{"a create has made its disk", func() bool { return len(machines("disk.qcow2")) > 0 }},
			{"a create has started QEMU", func() bool { return len(machines("pid")) > 0 }},
		},
		placed: func(w *world) {
			dir = filepath.Join(w.DataDir(), "cloud")
			// A test that fails leaves machines. The server must be gone first, or it makes others.
			w.t.Cleanup(func() {
				w.Kill()
				for _, path := range machines("") {
					_ = signalQemu(path, syscall.SIGKILL) // it may have ended by itself
				}
			})
		},
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
			if err := signalQemu(filepath.Join(dir, id), sig); err != nil {
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
			for _, path := range machines("") {
				b.machines = append(b.machines, filepath.Base(path))
			}
			left, _ := filepath.Glob(filepath.Join(dir, "gone-*"))
			b.leftovers = left
			return b
		},
	}
}

// signalQemu sends a signal to the QEMU of a machine's directory.
func signalQemu(dir string, sig syscall.Signal) error {
	b, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return err
	}
	return syscall.Kill(pid, sig)
}

// container runs a job from an image in one of the machines.
func (w *world) container() {
	w.t.Helper()
	file := filepath.Join(w.dir, "busybox.tar")
	imagetest.WriteArchive(w.t, file, "busybox:e2e", imagetest.Busybox(w.t))
	w.succeeds("image", "load", file)
	out := w.succeeds("run", "--name", "box", "--image", "busybox:e2e", "--", "cat", "/proc/1/cgroup")
	if !strings.Contains(out, "0::/") {
		w.t.Errorf("the container is not in a cgroup of version 2:\n%s", out)
	}
	w.ended("box")
}
