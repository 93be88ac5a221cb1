package qemu

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/boot"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/testwait"
)

// container runs a container from the machine's own files: namespaces, a root and a cgroup of its own.
const container = `sudo sh -ec '
mkdir -p /tmp/bundle/rootfs && cd /tmp/bundle && mount --bind / rootfs
crun spec
sed -i -e "s|\"terminal\": true|\"terminal\": false|" -e "s|\"sh\"|\"sh\", \"-c\", \"test \$\$ = 1 \&\& grep -q ^0:: /proc/1/cgroup\"|" config.json
crun run box'`

// TestRealBoot boots an image that `make vm-image` has built, whose path MUSTER_VM_IMAGE has: its
// cloud-init installs the host key that the server made, the operator's script runs beside it, and a
// container runs inside. It takes about a minute without KVM.
func TestRealBoot(t *testing.T) {
	image := os.Getenv("MUSTER_VM_IMAGE")
	if image == "" {
		t.Skip("MUSTER_VM_IMAGE names no image; make vm-image builds one")
	}
	h := newHost(t)
	private, public, err := remote.NewKey("muster")
	if err != nil {
		t.Fatal(err)
	}
	key := h.dir + ".key"
	if err := os.WriteFile(key, []byte(private.Reveal()), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Name: "here", Owner: "o", Dir: h.dir, Image: image, Access: cloud.Access{KeyFile: key},
		Offerings: []muster.Offering{{Name: "small", Available: true, Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB, Disk: 4 * muster.GiB}}}})
	if err != nil {
		t.Fatal(err)
	}
	in := intent("real")
	in.Boot, err = boot.For(boot.Config{Secret: muster.NewSecret(strings.Repeat("s", boot.MinSecret)), AuthorizedKey: strings.TrimSpace(public),
		UserData: "#!/bin/sh\ntouch /run/operator-was-here\n", Limit: p.UserDataLimit()}, in.Token)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got := p.Create(t.Context(), []cloud.Intent{in})
	if got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	id := got[0].Instance.ID
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(h.dir + "/" + string(id) + "/" + consoleName)
			t.Logf("console:\n%s", b[max(0, len(b)-80000):])
		}
		for _, err := range p.Destroy(context.Background(), []muster.InstanceID{id}) {
			if err != nil {
				t.Error(err)
			}
		}
	})
	t.Logf("QEMU runs after %s", time.Since(began).Round(time.Millisecond))
	access, err := p.Access(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := remote.ParseKey(private, muster.Secret{})
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := remote.ParseHostKey(in.Boot.HostKey)
	if err != nil {
		t.Fatal(err)
	}
	var c *remote.Conn
	testwait.Within(t, 2*time.Minute, "SSH with the key of the user data", func() bool {
		c, err = remote.Dial(t.Context(), remote.Config{Address: access.Address, User: access.User, Signers: []remote.Signer{signer}, HostKeys: []remote.HostKey{hostKey}})
		return err == nil
	})
	defer c.Close()
	t.Logf("SSH with the pinned host key after %s", time.Since(began).Round(100*time.Millisecond))
	testwait.Within(t, 5*time.Minute, "the end of cloud-init", func() bool {
		r, err := c.Run(t.Context(), remote.Command{Args: []string{"sh", "-c", "test -e /run/cloud-init/result.json"}})
		return err == nil && r.Exit == 0
	})
	t.Logf("cloud-init is done after %s", time.Since(began).Round(100*time.Millisecond))
	for _, command := range []string{
		"test -e /run/operator-was-here",
		"test \"$(sudo ls /etc/ssh/ssh_host_*_key)\" = /etc/ssh/ssh_host_ed25519_key",
		"grep -q cgroup2 /proc/mounts",
		container,
		"test $(df --output=size -BG / | tail -n 1 | tr -dc 0-9) -ge 3",
	} {
		r, err := c.Run(t.Context(), remote.Command{Args: []string{"sh", "-c", command}})
		if err != nil || r.Exit != 0 {
			t.Errorf("%s: exit %d, %v: %s", command, r.Exit, err, r.Stderr)
		}
	}
	for _, err := range p.Suspend(t.Context(), []muster.InstanceID{id}) {
		if err != nil {
			t.Error(err)
		}
	}
	woken := time.Now()
	for _, err := range p.Resume(t.Context(), []muster.InstanceID{id}) {
		if err != nil {
			t.Error(err)
		}
	}
	if r, err := c.Run(t.Context(), remote.Command{Args: []string{"test", "-e", "/run/operator-was-here"}}); err != nil || r.Exit != 0 {
		t.Errorf("after it was suspended: exit %d, %v", r.Exit, err)
	}
	t.Logf("a command has run %s after the resume", time.Since(woken).Round(time.Millisecond))
	// The lease's way out: the machine ends its own process.
	_, _ = c.Run(t.Context(), remote.Command{Args: []string{"poweroff"}, Root: true})
	testwait.Within(t, 2*time.Minute, "the machine is gone after poweroff", func() bool {
		list, err := p.List(t.Context(), "")
		return err == nil && len(list.Instances) == 0
	})
}
