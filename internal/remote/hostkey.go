package remote

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/musterhq/muster"
)

// HostKeyError says that a host showed another key than the expected one. Nothing was sent to it.
type HostKeyError struct {
	Address string
	// Seen is the key that the host showed, as "ssh-ed25519 SHA256:…".
	Seen string
	// Expected are the keys that it may have; none if known_hosts does not have the host.
	Expected []string
	// Source says where they come from: "pinned", or a known_hosts file.
	Source string
	// Revoked: the file says that this key must not be trusted any more.
	Revoked bool
	// Err is what else is wrong with it, as a certificate that has expired.
	Err error
}

func (e *HostKeyError) Unwrap() error { return e.Err }

func (e *HostKeyError) Error() string {
	switch {
	case e.Err != nil:
		return fmt.Sprintf("host key of %s is %s, which %s does not bear out: %v; nothing was sent to it", e.Address, e.Seen, e.Source, e.Err)
	case e.Revoked:
		return fmt.Sprintf("host key of %s is %s, which %s marks as revoked: nothing was sent to it", e.Address, e.Seen, e.Source)
	case len(e.Expected) == 0:
		return fmt.Sprintf("host key of %s is %s, and %s has no key for this host: compare it with the host's own and add it there; nothing was sent to it", e.Address, e.Seen, e.Source)
	}
	return fmt.Sprintf("host key of %s is %s, expected %s (%s): another host answers there, or the host was reinstalled; nothing was sent to it",
		e.Address, e.Seen, strings.Join(e.Expected, " or "), e.Source)
}

func fingerprint(k ssh.PublicKey) string { return k.Type() + " " + ssh.FingerprintSHA256(k) }

// KnownHosts is a file in the form of OpenSSH's known_hosts. It is read again when it has changed, and parsed once for all hosts.
type KnownHosts struct {
	path string

	mu      sync.Mutex
	read    fs.FileInfo // of what is parsed
	check   ssh.HostKeyCallback
	byCerts bool // it names certificate authorities
}

// OpenKnownHosts reads the file for the first time.
func OpenKnownHosts(path string) (*KnownHosts, error) {
	k := &KnownHosts{path: path}
	if _, _, err := k.current(); err != nil {
		return nil, err
	}
	return k, nil
}

func (k *KnownHosts) current() (ssh.HostKeyCallback, bool, error) {
	info, err := os.Stat(k.path)
	if err != nil {
		return nil, false, &muster.Fault{Kind: muster.FaultInvalid, Message: "known hosts", Err: err}
	}
	k.mu.Lock()
	read, check, byCerts := k.read, k.check, k.byCerts
	k.mu.Unlock()
	if read != nil && os.SameFile(read, info) && read.Size() == info.Size() && read.ModTime().Equal(info.ModTime()) {
		return check, byCerts, nil
	}
	// Two who find it changed both read it: that is rare, and neither waits for the disk of the other.
	check, err = knownhosts.New(k.path)
	if err != nil {
		return nil, false, &muster.Fault{Kind: muster.FaultInvalid, Message: "known hosts", Err: err}
	}
	text, err := os.ReadFile(k.path)
	if err != nil {
		return nil, false, &muster.Fault{Kind: muster.FaultInvalid, Message: "known hosts", Err: err}
	}
	byCerts = bytes.Contains(text, []byte("@cert-authority"))
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read, k.check, k.byCerts = info, check, byCerts
	return check, byCerts, nil
}

// verifier checks the key of one host during one handshake.
type verifier struct {
	address string
	pinned  []HostKey
	known   ssh.HostKeyCallback
	source  string
	// accepted: the key was seen and is right. Written by the handshake's goroutine, read after it.
	accepted bool
}

// verify makes a verifier and the algorithms to ask for. The expected keys' come first, so that a host with
// several keys shows one of those; the others follow, so that a wrong key is seen and can be told.
func (c Config) verify() (*verifier, []string, error) {
	v := &verifier{address: c.Address, pinned: c.HostKeys, source: "pinned"}
	var want []string
	for _, k := range c.HostKeys {
		want = append(want, algorithms(k.Type())...)
	}
	if c.KnownHosts != nil {
		check, byCerts, err := c.KnownHosts.current()
		if err != nil {
			return nil, nil, err
		}
		v.known, v.source = check, c.KnownHosts.path
		if byCerts {
			for _, a := range supported() {
				if strings.Contains(a, "-cert-") {
					want = append(want, a)
				}
			}
		}
		// A key that nobody has: the answer tells which ones would be right.
		var unknown *knownhosts.KeyError
		if err := check(c.Address, nowhere{}, nobodys{}); errors.As(err, &unknown) {
			for _, k := range unknown.Want {
				want = append(want, algorithms(k.Key.Type())...)
			}
		}
	}
	for _, a := range supported() {
		if !slices.Contains(want, a) {
			want = append(want, a)
		}
	}
	return v, want, nil
}

func supported() []string { return ssh.SupportedAlgorithms().HostKeys }

// algorithms are those by which a key of this type signs. The oldest of RSA is left out.
func algorithms(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{keyType}
}

func (v *verifier) check(address string, remote net.Addr, key ssh.PublicKey) error {
	wrong := &HostKeyError{Address: v.address, Seen: fingerprint(key), Source: v.source}
	if v.known == nil {
		for _, k := range v.pinned {
			if bytes.Equal(k.Marshal(), key.Marshal()) {
				v.accepted = true
				return nil
			}
			wrong.Expected = append(wrong.Expected, fingerprint(k))
		}
		return wrong
	}
	if remote == nil {
		remote = nowhere{} // an in-memory connection; the name decides anyway
	}
	err := v.known(address, remote, key)
	if err == nil {
		v.accepted = true
		return nil
	}
	var unknown *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		wrong.Revoked = true
	case errors.As(err, &unknown):
		for _, k := range unknown.Want {
			wrong.Expected = append(wrong.Expected, fingerprint(k.Key))
		}
	default:
		wrong.Err = err
	}
	return wrong
}

// nowhere stands for an address where only the name counts.
type nowhere struct{}

func (nowhere) Network() string { return "tcp" }
func (nowhere) String() string  { return "0.0.0.0:0" }

// nobodys is a key that is in no file.
type nobodys struct{}

func (nobodys) Type() string                            { return ssh.KeyAlgoED25519 }
func (nobodys) Marshal() []byte                         { return make([]byte, ed25519.PublicKeySize) }
func (nobodys) Verify(_ []byte, _ *ssh.Signature) error { return errors.New("nobody's key") }
