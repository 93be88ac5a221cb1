// Package packages tests the packages of `make packages`: the script run installs the deb in a directory, twice compares two
// builds, and the test here installs it in a machine of QEMU with systemd and cgroups of version 2.
package packages

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/boot"
	"github.com/musterhq/muster/internal/cloud/qemu"
	"github.com/musterhq/muster/internal/imagetest"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/testwait"
)

var (
	//go:embed unit.sh
	unitScript []byte
	//go:embed rootless.sh
	rootlessScript []byte
)

// scriptTime bounds each script. A processor that is emulated, on a busy host, needs minutes.
const scriptTime = 30 * time.Minute

// TestInMachine boots the image that MUSTER_VM_IMAGE names, and puts the deb that MUSTER_DEB names into it: first an ordinary
// user runs its programs in a cgroup that systemd has delegated, then root installs it, uses its unit, and removes it.
func TestInMachine(t *testing.T) {
	image, deb := os.Getenv("MUSTER_VM_IMAGE"), os.Getenv("MUSTER_DEB")
	if image == "" || deb == "" {
		t.Skip("run by make e2e-vm-unit")
	}
	c := bootMachine(t, image)
	archive := filepath.Join(t.TempDir(), "busybox.tar")
	imagetest.WriteArchive(t, archive, "busybox:e2e", imagetest.Busybox(t))
	put(t, c, archive, "/var/tmp/busybox.tar")
	put(t, c, deb, "/var/tmp/muster.deb")
	script(t, c, "rootless", rootlessScript, false)
	script(t, c, "unit", unitScript, true)
}

// bootMachine is a connection to a new machine whose cloud-init is done. It ends with the test.
func bootMachine(t *testing.T, image string) *remote.Conn {
	t.Helper()
	// Short: sockets are below it.
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	private, public, err := remote.NewKey("muster")
	if err != nil {
		t.Fatal(err)
	}
	p, err := qemu.New(qemu.Config{Name: "here", Owner: "e2e", Dir: dir, Image: image, Offerings: []muster.Offering{
		{Name: "one", Available: true, Capacity: muster.Resources{CPU: 2000, Memory: 2 * muster.GiB, Disk: 4 * muster.GiB}}}})
	if err != nil {
		t.Fatal(err)
	}
	in := cloud.Intent{Token: "e2e", Node: "e2e", Pool: "e2e", Offering: "one", Market: muster.OnDemand}
	secret := muster.NewSecret(strings.Repeat("s", boot.MinSecret))
	in.Boot, err = boot.For(boot.Config{Secret: secret, AuthorizedKey: strings.TrimSpace(public), Limit: p.UserDataLimit()}, in.Token)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Create(t.Context(), []cloud.Intent{in})
	if got[0].Err != nil {
		t.Fatal(got[0].Err)
	}
	id := got[0].Instance.ID
	t.Cleanup(func() {
		if b, _ := os.ReadFile(filepath.Join(dir, string(id), "console.log")); t.Failed() {
			t.Logf("console:\n%s", b[max(0, len(b)-20000):])
		}
		for _, err := range p.Destroy(context.Background(), []muster.InstanceID{id}) {
			if err != nil {
				t.Error(err)
			}
		}
	})
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
	testwait.Within(t, 15*time.Minute, "SSH with the key of the user data", func() bool {
		c, err = remote.Dial(t.Context(), remote.Config{Address: access.Address, User: access.User, Signers: []remote.Signer{signer}, HostKeys: []remote.HostKey{hostKey}})
		return err == nil
	})
	t.Cleanup(c.Close)
	testwait.Within(t, 15*time.Minute, "the end of cloud-init", func() bool {
		r, err := c.Run(t.Context(), remote.Command{Args: []string{"test", "-e", "/run/cloud-init/result.json"}})
		return err == nil && r.Exit == 0
	})
	return c
}

// put puts a file of this host into the machine.
func put(t *testing.T, c *remote.Conn, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	putBytes(t, c, b, to)
}

func putBytes(t *testing.T, c *remote.Conn, b []byte, to string) {
	t.Helper()
	sum := sha256.Sum256(b)
	_, err := c.Put(t.Context(), remote.File{Path: to, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(b)), Mode: 0o644,
		Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }})
	if err != nil {
		t.Fatal(err)
	}
}

// script runs a script in the machine, which must succeed; what it traces is shown if it does not.
func script(t *testing.T, c *remote.Conn, name string, text []byte, root bool) {
	t.Helper()
	began := time.Now()
	path := "/var/tmp/" + name + ".sh"
	putBytes(t, c, text, path)
	r, err := c.Run(t.Context(), remote.Command{Args: []string{"bash", path}, Root: root, Limit: scriptTime})
	if err != nil || r.Exit != 0 {
		t.Fatalf("%s: exit %d, %v\n%s\n%s", name, r.Exit, err, r.Stdout, r.Stderr)
	}
	t.Logf("%s: %s\n%s", name, time.Since(began).Round(time.Second), r.Stdout)
}
