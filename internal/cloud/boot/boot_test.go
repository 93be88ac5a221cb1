package boot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
)

const authorized = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILGd7Yz2gOFgXQkUaEtZ6RzcQ0K0hJHJBL0jBvwzXqPb muster"

func config() Config {
	return Config{Secret: muster.NewSecret(strings.Repeat("s", MinSecret)), AuthorizedKey: authorized}
}

// keysOf reads a rendered cloud-config back, with another reader than the one that wrote it.
func keysOf(t *testing.T, document string) (private, public string) {
	t.Helper()
	var c struct {
		SSHKeys struct {
			Private string `yaml:"ed25519_private"`
			Public  string `yaml:"ed25519_public"`
		} `yaml:"ssh_keys"`
		Authorized []string `yaml:"ssh_authorized_keys"`
		Delete     bool     `yaml:"ssh_deletekeys"`
	}
	if err := yaml.Unmarshal([]byte(document), &c); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
	if !c.Delete || len(c.Authorized) != 1 || c.Authorized[0] != authorized {
		t.Errorf("%+v", c)
	}
	return c.SSHKeys.Private, c.SSHKeys.Public
}

func TestSameTokenSameBytes(t *testing.T) {
	a, err := For(config(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		config Config
		token  muster.Token
		same   bool
	}{
		{"again", config(), "t1", true},
		{"another token", config(), "t2", false},
		{"another cluster", Config{Secret: muster.NewSecret(strings.Repeat("z", MinSecret)), AuthorizedKey: authorized}, "t1", false},
	} {
		b, err := For(c.config, c.token)
		if err != nil {
			t.Fatal(err)
		}
		if same := a.UserData.Reveal() == b.UserData.Reveal() && a.HostKey == b.HostKey; same != c.same {
			t.Errorf("%s: same is %v", c.name, same)
		}
		if !c.same && a.HostKey == b.HostKey {
			t.Errorf("%s: the same host key", c.name)
		}
	}
}

func TestOpenSSHReadsTheKey(t *testing.T) {
	b, err := For(config(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	private, public := keysOf(t, b.UserData.Reveal())
	if public != b.HostKey {
		t.Errorf("%q and %q", public, b.HostKey)
	}
	signer, err := ssh.ParsePrivateKey([]byte(private))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))); got != b.HostKey {
		t.Errorf("the private key is that of %q", got)
	}
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil {
		t.Skip("no ssh-keygen here")
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(private), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(keygen, "-y", "-f", file).CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != b.HostKey {
		t.Errorf("ssh-keygen says %q, %v", out, err)
	}
}

func TestOperatorsPart(t *testing.T) {
	c := config()
	for document, want := range map[string]string{
		"#!/bin/sh\necho --" + boundary + "\n": "text/x-shellscript",
		"#cloud-config\npackages: [jq]\n":      "text/cloud-config",
	} {
		c.UserData = document
		b, err := For(c, "t1")
		if err != nil {
			t.Fatal(err)
		}
		text := b.UserData.Reveal()
		if !strings.HasPrefix(text, "Content-Type: multipart/mixed") || !strings.Contains(text, want) || strings.Count(text, "--"+boundary) != 3 {
			t.Errorf("%s", text)
		}
	}
	for _, bad := range []Config{
		{Secret: c.Secret, AuthorizedKey: authorized, UserData: "echo hello"},
		{Secret: c.Secret, AuthorizedKey: authorized, Limit: 100},
	} {
		if _, err := For(bad, "t1"); muster.KindOf(err) != muster.FaultInvalid {
			t.Errorf("%v", err)
		}
	}
	for _, bad := range []Config{{AuthorizedKey: authorized}, {Secret: c.Secret}, {Secret: c.Secret, AuthorizedKey: authorized + "\nroot: yes"}} {
		if _, err := For(bad, "t1"); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	b, err := For(config(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	if text := b.UserData.String(); strings.Contains(text, "PRIVATE") {
		t.Error(text)
	}
}

func TestReplacementIsAnotherKey(t *testing.T) {
	first, err := For(config(), "t1")
	if err != nil {
		t.Fatal(err)
	}
	private, line, err := Replacement(config().Secret, "t1")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey([]byte(private.Reveal()))
	if err != nil || lineOf(signer.PublicKey()) != line || line == first.HostKey {
		t.Errorf("%q of %v, and first %q", line, err, first.HostKey)
	}
	if again, _, _ := Replacement(config().Secret, "t1"); again.Reveal() != private.Reveal() {
		t.Error("it differs the second time")
	}
}
