package isolation

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/cgroup"
	"github.com/musterhq/muster/internal/agent/initbox"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/runtimetest"
)

func TestForkBomb(t *testing.T) {
	everywhere(t, func(n *node) {
		unharmed := n.bystander()
		// Each shell leaves a sleeper behind before it goes on: those that cannot fork die, and the sandbox stays full.
		c := n.config("sh", "-c", "bomb() { sleep 600 & bomb | bomb & }; (bomb) & exec sleep 600")
		c.Limits.Pids = 64
		s := n.start(c)
		n.until("it is full", func() bool { return s.Usage().Pids >= 32 })
		for range 20 {
			if got := s.Usage().Pids; got > 64+cgroup.InitThreads {
				n.Errorf("it has %d processes", got)
			}
		}
		// The node is of use meanwhile.
		if out, result := n.sh(n.config(), "echo works"); out != "works\n" || result.Failure != nil {
			n.Errorf("another start: %q, %+v", out, result)
		}
		unharmed()
		s.Stop(100 * time.Millisecond)
		if result := n.wait(s); !result.Stopped {
			n.Errorf("result %+v", result)
		}
	})
}

// S-H2: whoever holds a claim, and the job itself, can fill a sandbox with processes and then send requests. Its init must go on, with threads
// that the limit has room for beside the processes that were asked for.
func TestFullSandboxAnswers(t *testing.T) {
	everywhere(t, func(n *node) {
		c := n.config("sleep", "600")
		c.Limits.Pids = 16
		s := n.start(c)
		words, err := initbox.Read(c.Dir)
		if err != nil || words.Init == nil {
			n.Fatal(words, err)
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", words.Init.Pid))
		if err != nil || len(threads) > cgroup.InitThreads {
			n.Errorf("init has %d threads, and %d in reserve: %v", len(threads), cgroup.InitThreads, err)
		}
		runtimetest.FillAndAsk(n, s)
	})
}

// S-H2: whoever holds a claim can fill a sandbox with processes until its init finds no thread for the next request, and ends. That is not the node's fault.
func TestInitWithoutThreads(t *testing.T) {
	everywhere(t, func(n *node) {
		c := n.config("sh", "-c", "bomb() { sleep 600 & bomb | bomb & }; (bomb) & exec sleep 600")
		c.Limits.Pids = 16
		s := n.start(c)
		words, err := initbox.Read(c.Dir)
		if err != nil || words.Init == nil {
			n.Fatal(words, err)
		}
		n.until("it is full", func() bool { return cgroup.PidsLimitHit(words.Sandbox.Cgroups) })
		// As the runtime of its language does when it cannot make a thread.
		if err := syscall.Kill(words.Init.Pid, syscall.SIGKILL); err != nil {
			n.Fatal(err)
		}
		if result := n.wait(s); !failed(result, muster.FailureUser, muster.ReasonSandboxDied) {
			n.Errorf("result %+v, %v", result, result.Failure)
		}
	})
}

func TestMemoryBomb(t *testing.T) {
	const hog = `x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done`
	everywhere(t, func(n *node) {
		unharmed := n.bystander()
		for name, script := range map[string]string{
			"its own":            hog,
			"init is told first": "/probe strangle; " + hog,
			"files in memory":    `i=0; while dd if=/dev/zero of=/dev/shm/$i bs=1M count=16 2>/dev/null; do i=$((i+1)); done; ` + hog,
		} {
			c := n.config()
			c.Resources.Memory = 64 * muster.MiB
			out, result := n.sh(c, script)
			if !failed(result, muster.FailureUser, muster.ReasonOutOfMemory) {
				n.Errorf("%s: %+v, %v, %q", name, result, result.Failure, out)
			}
		}
		unharmed()
	})
}

func TestInitIsStrangled(t *testing.T) {
	everywhere(t, func(n *node) {
		// Whatever becomes of its init, a sandbox that did it to itself must not look like a fault of the node.
		out, result := n.sh(n.config(), `/probe strangle; i=0; while [ $i -lt 3000 ]; do (echo $i; sleep 0 &); i=$((i+1)); done >&2; exit 3`)
		if result.Failure == nil || result.Failure.Class != muster.FailureUser {
			n.Errorf("result %+v, %v, %q", result, result.Failure, out)
		}
	})
}

func TestEverythingInsideIsKilled(t *testing.T) {
	everywhere(t, func(n *node) {
		_, result := n.sh(n.config(), `(kill -9 -1) & wait; sleep 600`)
		if !failed(result, muster.FailureUser, muster.ReasonSignal) || result.Signal != "SIGKILL" {
			n.Errorf("result %+v, %v", result, result.Failure)
		}
	})
}

// used is what lies on the node's disk below a directory, and in how many files.
func used(t testing.TB, dir string) (size muster.Bytes, files int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		files++
		size += muster.Bytes(info.Sys().(*syscall.Stat_t).Blocks) * 512
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return size, files
}

func TestDiskFill(t *testing.T) {
	everywhere(t, func(n *node) {
		unharmed := n.bystander()
		for _, place := range []string{"/fill", "/tmp/fill", "/vol/fill"} {
			n.T.Run(place, func(t *testing.T) {
				inner := *n
				inner.T = t
				c := inner.config()
				c.Resources.Disk = 64 * muster.MiB
				out, result := inner.sh(c, "dd if=/dev/zero of="+place+" bs=1M count=256 2>&1; ls -l "+place)
				if !strings.Contains(out, "No space left") && !strings.Contains(out, "quota") {
					t.Errorf("it is not told that the disk is full: %q, %+v", out, result)
				}
				if size, _ := used(t, c.Dir); size > c.Resources.Disk+16*muster.MiB {
					t.Errorf("%s of the node's disk are used", size)
				}
			})
		}
		unharmed()
	})
}

// What is in the directory shared with a job is outside of the disk that it asked for, and can fill the node's: this
// test fails once it no longer can, and the page must say so then. Until then: the job is told that there is no more, its end
// is told, a neighbour that writes nothing meanwhile does not notice, and once it is removed all is as before.
func TestSharedDirectoryFill(t *testing.T) {
	everywhere(t, func(n *node) {
		n.root = smallDisk(n)
		unharmed := n.bystander()
		c := n.config()
		c.Resources.Disk = 16 * muster.MiB
		_, result := n.sh(c, "dd if=/dev/zero of=/shared/fill bs=1M count=512 2>/dev/null && exit 4; exit 3")
		if size, _ := used(n, c.Container.Shared); size < 2*c.Resources.Disk || size > smallDiskSize {
			n.Errorf("it used %s of a disk of %s", size, smallDiskSize)
		}
		if result.ExitCode != 3 {
			n.Errorf("its end is told as %+v, %v", result, result.Failure)
		}
		if err := n.runtime.Remove(n.Context(), c.Dir); err != nil {
			n.Errorf("remove: %v", err)
		}
		if err := journal.RemoveTree(c.Dir); err != nil {
			n.Errorf("remove: %v", err)
		}
		unharmed()
		if out, result := n.sh(n.config(), "echo works"); out != "works\n" || result.Failure != nil {
			n.Errorf("another start: %q, %+v", out, result)
		}
	})
}

const smallDiskSize = 128 * muster.MiB

// smallDisk stands for the disk of the node, so that it can be filled.
func smallDisk(n *node) string {
	n.Helper()
	file, at := filepath.Join(n.root, "disk.img"), filepath.Join(n.root, "disk")
	if err := os.Mkdir(at, 0o700); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		n.Fatal(err)
	}
	if err := os.Truncate(file, int64(smallDiskSize)); err != nil {
		n.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.ext4", "-q", "-F", file}, {"mount", "-t", "ext4", "-o", "loop", file, at}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			n.Skipf("no disk that can be filled: %q: %v: %s", command, err, out)
		}
	}
	n.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			n.Errorf("unmount %s: %v", at, err)
		}
	})
	return at
}

func TestInodeFill(t *testing.T) {
	everywhere(t, func(n *node) {
		c := n.config()
		c.Resources.Disk = 64 * muster.MiB
		out, result := n.sh(c, `cd /tmp; i=0; while [ $i -lt 200000 ] && : 2>/dev/null >f$i; do i=$((i+1)); done; echo $i`)
		if strings.TrimSpace(out) == "200000" {
			n.Errorf("200,000 files could be made: %+v", result)
		}
		if _, files := used(n, c.Dir); files > 1000 {
			n.Errorf("%d files are on the node", files)
		}
	})
}

func TestOutputFlood(t *testing.T) {
	everywhere(t, func(n *node) {
		c := n.config()
		c.OutputLimit = 1 << 20
		_, result := n.sh(c, fmt.Sprintf(`yes | head -c %[1]d; yes | head -c %[1]d >&2; exit 4`, 200_000_000/runtimetest.Slow()))
		if result.ExitCode != 4 {
			n.Errorf("result %+v", result)
		}
		if size, _ := used(n, filepath.Join(c.Dir, "out")); size > 8*muster.MiB {
			n.Errorf("%s of output are on the node", size)
		}
	})
}

// What is in the shared directory belongs to a stranger: no link in it may be followed by who has the rights of the node.
func TestSharedDirectoryHoldsNoSurprise(t *testing.T) {
	everywhere(t, func(n *node) {
		c := n.config()
		out, result := n.sh(c, `cp /bin/busybox /shared/suid && chmod 6755 /shared/suid; mknod /shared/disk b 8 0; mkfifo /shared/fifo; ls /shared`)
		if result.Failure != nil {
			n.Fatalf("%+v, %q", result, out)
		}
		err := filepath.WalkDir(c.Container.Shared, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type()&os.ModeDevice != 0 {
				n.Errorf("%s is a device", path)
			}
			return err
		})
		if err != nil {
			n.Error(err)
		}
		// A program with the rights of its owner is there, but nobody of the node gets to it.
		if info, err := os.Stat(c.Dir); err != nil || info.Mode().Perm()&0o077 != 0 {
			n.Errorf("others reach %s: %v, %v", c.Dir, info.Mode(), err)
		}
	})
}
