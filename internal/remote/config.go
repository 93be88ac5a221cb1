package remote

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
)

// Signer proves who we are. Made by ParseKey.
type Signer = ssh.Signer

// HostKey is the public half of a host's key. Made by ParseHostKey.
type HostKey = ssh.PublicKey

// Defaults of Config.
const (
	defaultPort         = "22"
	defaultUser         = "root"
	defaultSilence      = 30 * time.Second
	defaultDialLimit    = time.Minute
	defaultCommandLimit = 2 * time.Minute
)

// Config says how to reach one host.
type Config struct {
	// Address is host or host:port; the port is 22 if none is given.
	Address string
	// User to log in as; root if empty. Another one needs sudo without a password for what only root may do.
	User string
	// Signers are our keys, tried in this order. At least one is needed.
	Signers []Signer
	// HostKeys are the only keys that the host may have. Either these or KnownHosts: there is no
	// way to reach a host whose key is not known.
	HostKeys   []HostKey
	KnownHosts *KnownHosts

	// Program is the path of muster-node on the host: the way to its sockets where forwarding is forbidden.
	// It need not be there yet when the host is dialled.
	Program string

	// Silence is how long the peer may say nothing and take nothing: 30 s if zero.
	Silence time.Duration
	// DialLimit bounds Dial with all its attempts: one minute if zero.
	DialLimit time.Duration
	// CommandLimit bounds a command whose context ends later or never: two minutes if zero.
	CommandLimit time.Duration

	// Through makes the byte stream below SSH, for hosts behind another one (Conn.DialTCP of that one).
	// Its connections must honour deadlines. nil: TCP.
	Through func(ctx context.Context, address string) (net.Conn, error)
	Logger  *slog.Logger
}

// ready is the configuration with all defaults in place.
func (c Config) ready() (Config, error) {
	invalid := func(field, format string, args ...any) (Config, error) {
		f := muster.Faultf(muster.FaultInvalid, format, args...)
		f.Field = field
		return c, f
	}
	if c.Address == "" {
		return invalid("address", "remote: a host has no address")
	}
	host, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		host, port = strings.Trim(c.Address, "[]"), defaultPort
	}
	if host == "" || strings.ContainsAny(host, " \t\n") {
		return invalid("address", "remote: address %q: a name or an address is needed, with :PORT if it is not 22", c.Address)
	}
	c.Address = net.JoinHostPort(host, port)
	c.User = cmp.Or(c.User, defaultUser)
	if len(c.Signers) == 0 {
		return invalid("signers", "remote: host %s: no private key to log in with", c.Address)
	}
	if (len(c.HostKeys) > 0) == (c.KnownHosts != nil) {
		return invalid("host_keys", "remote: host %s: its host key must be known beforehand, either by the key itself or by a known_hosts file", c.Address)
	}
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
	}{{&c.Silence, defaultSilence}, {&c.DialLimit, defaultDialLimit}, {&c.CommandLimit, defaultCommandLimit}} {
		if *d.value <= 0 {
			*d.value = d.usual
		}
	}
	if c.Through == nil {
		c.Through = dialTCP
	}
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c, nil
}

func dialTCP(ctx context.Context, address string) (net.Conn, error) {
	// The kernel's keep-alive says nothing about the peer's sshd; ours does.
	return (&net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}).DialContext(ctx, "tcp", address)
}

// ParseKey reads a private key in PEM. The passphrase is for those that need one.
func ParseKey(key, passphrase muster.Secret) (Signer, error) {
	s, err := ssh.ParsePrivateKey([]byte(key.Reveal()))
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		if passphrase.IsZero() {
			return nil, muster.Faultf(muster.FaultInvalid, "private key: it is encrypted, and no passphrase is given")
		}
		s, err = ssh.ParsePrivateKeyWithPassphrase([]byte(key.Reveal()), []byte(passphrase.Reveal()))
	}
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "private key", Err: err}
	}
	return s, nil
}

// ParseHostKey reads a public key as it stands in a file like ssh_host_ed25519_key.pub.
func ParseHostKey(line string) (HostKey, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Message: "host key: a line as in ssh_host_ed25519_key.pub is needed", Err: err}
	}
	return key, nil
}

// NewKey makes an ed25519 key: the private half in the form that sshd and ssh read, the public half as a line.
func NewKey(comment string) (private muster.Secret, public string, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return muster.Secret{}, "", err
	}
	block, err := ssh.MarshalPrivateKey(priv, comment)
	if err != nil {
		return muster.Secret{}, "", err
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		return muster.Secret{}, "", err
	}
	public = strings.TrimSuffix(string(ssh.MarshalAuthorizedKey(key)), "\n")
	if comment != "" {
		public += " " + comment
	}
	return muster.NewSecret(string(pem.EncodeToMemory(block))), public, nil
}
