// Package boot makes what an instance of a cloud gets for its first start: a document for cloud-init
// with the SSH host key that the instance must show and the public key that may log in.
//
// The server makes the host key, so it can verify the very first connection without a way to ask
// the machine. The key follows from a secret of the cluster and the token of the intent: a create
// that is repeated, also by another leader, sends the same bytes.
//
// It must never draw anything at random and never log what it renders. Anything on the machine that
// reaches the cloud's metadata service can read the document, so the key in it serves for one
// connection only; see package reach, which replaces it.
package boot

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
)

// MinSecret is the least length of the cluster's secret, in bytes.
const MinSecret = 32

// Config is what all instances of one provider have in common.
type Config struct {
	// Secret is the secret of the cluster, from which host keys follow. It has at least MinSecret bytes.
	Secret muster.Secret
	// AuthorizedKey is the public key that may log in, a line as in authorized_keys.
	AuthorizedKey string
	// UserData is the operator's own document: a script that begins with #!, or a #cloud-config.
	// Empty: none.
	UserData string
	// Limit is how many bytes the document may have; 0: no limit.
	Limit int
}

// For is what the instance of a token gets. FaultInvalid: the operator's document cannot be used.
func For(c Config, token muster.Token) (cloud.Boot, error) {
	key, check, err := hostKey(c.Secret, token, "first")
	if err != nil {
		return cloud.Boot{}, err
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return cloud.Boot{}, err
	}
	line := lineOf(public)
	document, err := render(c, line, privatePEM(key, public, check))
	if err != nil {
		return cloud.Boot{}, err
	}
	if c.Limit > 0 && len(document) > c.Limit {
		return cloud.Boot{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file",
			Message: fmt.Sprintf("the user data has %d bytes with what Muster adds, and this cloud takes %d: shorten user_data_file", len(document), c.Limit)}
	}
	return cloud.Boot{UserData: muster.NewSecret(document), HostKey: line}, nil
}

// Replacement is the host key that an instance shows after the first connection: the private half for
// the server to send over that connection, and the public half as a line. Nothing on the machine but
// root can read it, unlike the key of the user data. It follows from the token as well, so a server
// whose log was restored from a backup still knows it.
func Replacement(secret muster.Secret, token muster.Token) (private muster.Secret, line string, err error) {
	key, check, err := hostKey(secret, token, "replacement")
	if err != nil {
		return muster.Secret{}, "", err
	}
	public, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return muster.Secret{}, "", err
	}
	return muster.NewSecret(privatePEM(key, public, check)), lineOf(public), nil
}

// lineOf is a public key as in ssh_host_ed25519_key.pub, without a comment.
func lineOf(key ssh.PublicKey) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

// hostKey derives a host key of a token, and the number that OpenSSH's format wants twice.
func hostKey(secret muster.Secret, token muster.Token, which string) (ed25519.PrivateKey, uint32, error) {
	if len(secret.Reveal()) < MinSecret {
		return nil, 0, fmt.Errorf("boot: the secret has fewer than %d bytes", MinSecret)
	}
	if token == "" {
		return nil, 0, errors.New("boot: an intent without a token has no host key")
	}
	raw, err := hkdf.Key(sha256.New, []byte(secret.Reveal()), nil, "muster hostkey "+which+" "+string(token), ed25519.SeedSize+4)
	if err != nil {
		return nil, 0, err
	}
	return ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize]), binary.BigEndian.Uint32(raw[ed25519.SeedSize:]), nil
}

// privatePEM is a private key in OpenSSH's own format (PROTOCOL.key of OpenSSH), without a
// passphrase. The ssh package draws its check number at random, so the same key would give other
// bytes each time.
func privatePEM(key ed25519.PrivateKey, public ssh.PublicKey, check uint32) string {
	inner := ssh.Marshal(struct {
		Check1, Check2 uint32
		Type           string
		Public         []byte
		Private        []byte
		Comment        string
	}{check, check, ssh.KeyAlgoED25519, key.Public().(ed25519.PublicKey), key, ""})
	// The format pads to the block size of its cipher, which is 8 for none.
	for i := byte(1); len(inner)%8 != 0; i++ {
		inner = append(inner, i)
	}
	outer := ssh.Marshal(struct {
		Cipher, KDF, Options string
		Keys                 uint32
		Public, Private      []byte
	}{"none", "none", "", 1, public.Marshal(), inner})
	return string(pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: append([]byte("openssh-key-v1\x00"), outer...)}))
}

// runtimeScript installs a program that runs containers where there is none. Nodes in networks
// without a package archive need an image that has one.
const runtimeScript = `command -v crun >/dev/null 2>&1 || command -v runc >/dev/null 2>&1 || ` +
	`{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends crun; } || ` +
	`dnf -qy install crun || true`

// boundary separates the parts. It is fixed, because the same intent must give the same bytes.
const boundary = "muster-6d2f0c1a9b"

// render makes the document: one cloud-config, or that and the operator's part.
func render(c Config, publicKey, privateKey string) (string, error) {
	authorized := strings.TrimSpace(c.AuthorizedKey)
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(authorized)); err != nil || strings.ContainsAny(authorized, "\n\"\\") {
		return "", fmt.Errorf("boot: the key that may log in is not a line of authorized_keys")
	}
	var b bytes.Buffer
	b.WriteString("#cloud-config\n")
	// cloud-init deletes the keys of the image first, so no other key can be shown.
	b.WriteString("ssh_deletekeys: true\nssh_genkeytypes: [ed25519]\nssh_pwauth: false\n")
	fmt.Fprintf(&b, "ssh_keys:\n  ed25519_private: |\n    %s\n  ed25519_public: %s\n",
		strings.ReplaceAll(strings.TrimSpace(privateKey), "\n", "\n    "), publicKey)
	fmt.Fprintf(&b, "ssh_authorized_keys:\n  - \"%s\"\n", authorized)
	fmt.Fprintf(&b, "runcmd:\n  - [sh, -c, '%s']\n", runtimeScript)
	ours := b.String()
	if strings.TrimSpace(c.UserData) == "" {
		return ours, nil
	}
	kind, err := kindOf(c.UserData)
	if err != nil {
		return "", err
	}
	b.Reset()
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	// The operator's lists are appended to ours, and none of our values is replaced: otherwise a
	// document with ssh_authorized_keys of its own would lock the server out.
	part(&b, "text/cloud-config", ours)
	part(&b, kind, c.UserData)
	fmt.Fprintf(&b, "--%s--\n", boundary)
	return b.String(), nil
}

// part writes one part. It is base64, so that no line of it can look like a boundary.
func part(b *bytes.Buffer, kind, text string) {
	fmt.Fprintf(b, "--%s\nContent-Type: %s; charset=\"utf-8\"\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n"+
		"Merge-Type: list(append)+dict(no_replace,recurse_list)+str()\n\n", boundary, kind)
	encoded := base64.StdEncoding.EncodeToString([]byte(text))
	for len(encoded) > 76 {
		b.WriteString(encoded[:76] + "\n")
		encoded = encoded[76:]
	}
	b.WriteString(encoded + "\n")
}

// kindOf is the type of the operator's document, by its first line as cloud-init does it.
func kindOf(document string) (string, error) {
	switch {
	case strings.HasPrefix(document, "#!"):
		return "text/x-shellscript", nil
	case strings.HasPrefix(document, "#cloud-config"):
		return "text/cloud-config", nil
	}
	return "", &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file",
		Message: "the user data begins with neither #! nor #cloud-config, so cloud-init would ignore it"}
}
