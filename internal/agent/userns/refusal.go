package userns

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
)

// tryTime bounds one trial.
const tryTime = 10 * time.Second

// worked is set once a trial worked: nobody tries again then, as the server asks for each job.
var worked atomic.Bool

// Settings of the kernel that take user namespaces from ordinary users, with the value that does.
var settings = []struct{ file, value, name string }{
	{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"},
	{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=10000"},
	{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"},
}

// Refusal says why an ordinary user makes no containers on this host; "" if nothing is known to be in
// the way. It makes a user namespace, mounts in it, and leaves nothing. The program is that of a
// pool; "" is crun: an agent of an ordinary user works with no other of the usual ones.
func Refusal(ctx context.Context, program string) string {
	if program == "" {
		program = "crun"
	}
	if _, err := exec.LookPath(program); err != nil {
		return fmt.Sprintf("for an ordinary user they need %s, which is not on this host; install it, for example with `apt-get install crun`", program)
	}
	for _, p := range []string{"unshare", "nsenter"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Sprintf("for an ordinary user they need the program %s, which is not on this host; install util-linux", p)
		}
	}
	if worked.Load() {
		return ""
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil && older(string(release)) {
		return fmt.Sprintf("for an ordinary user they need Linux 5.11 or later, and this is %s; start it as root", strings.TrimSpace(string(release)))
	}
	ctx, cancel := context.WithTimeout(ctx, tryTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "unshare", "--user", "--map-root-user", "--net", "--mount", "--propagation", "private", "true").CombinedOutput()
	if err == nil {
		worked.Store(true)
		return ""
	}
	if why := refusedBy(os.ReadFile); why != "" {
		return why
	}
	return fmt.Sprintf("for an ordinary user they need a user namespace, and this host makes none (%v: %s); start it as root", err, strings.TrimSpace(string(out)))
}

// older reports whether a kernel has no overlay file system that an ordinary user may mount.
func older(release string) bool {
	var major, minor int
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); n < 2 || err != nil {
		return false
	}
	return major < 5 || major == 5 && minor < 11
}

// refusedBy names the setting of the kernel that is in the way; "" if none is.
func refusedBy(read func(string) ([]byte, error)) string {
	for _, s := range settings {
		if b, err := read(s.file); err == nil && strings.TrimSpace(string(b)) == s.value {
			return fmt.Sprintf("for an ordinary user they need user namespaces, which this host's kernel denies to ordinary users; root allows them with `sysctl -w %s`, or start it as root", s.name)
		}
	}
	return ""
}
