package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/atomicfile"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/boot"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/state"
)

// The files of the directory keys in the data directory. Both are made when the first provider of a
// cloud is configured, and are readable by the server's user alone.
const (
	keysDir = "keys"
	// loginKey is the private key that logs in to instances of clouds.
	loginKey = "login"
	// hostSecret is the secret from which the host keys of such instances follow. Without it the
	// server still knows the keys that the log has, but instances of a restored backup are lost.
	hostSecret = "hosts"
)

// keys are what the server needs to reach instances of clouds.
type keys struct {
	// file is the path of the private key, authorized its public half as a line.
	file, authorized string
	secret           muster.Secret
}

// openKeys reads the keys, and makes those that are missing.
func openKeys(dataDir string) (*keys, error) {
	dir := filepath.Join(dataDir, keysDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	k := &keys{file: filepath.Join(dir, loginKey)}
	if _, err := readOrMake(k.file, newLoginKey); err != nil {
		return nil, err
	}
	line, err := publicHalf(k.file)
	if err != nil {
		return nil, err
	}
	k.authorized = line + " muster"
	path := filepath.Join(dir, hostSecret)
	secret, err := readOrMake(path, newHostSecret)
	if err != nil {
		return nil, err
	}
	k.secret = muster.NewSecret(strings.TrimSpace(string(secret)))
	if len(k.secret.Reveal()) < boot.MinSecret {
		return nil, fmt.Errorf("%s: it is shorter than %d characters; put back the file that was there, or remove it to have another one made", path, boot.MinSecret)
	}
	return k, nil
}

// readOrMake reads a file, or writes what made returns if there is none.
func readOrMake(path string, made func() ([]byte, error)) ([]byte, error) {
	b, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = made(); err != nil {
		return nil, err
	}
	return b, atomicfile.Write(path, b)
}

func newLoginKey() ([]byte, error) {
	private, _, err := remote.NewKey("muster")
	return []byte(private.Reveal()), err
}

func newHostSecret() ([]byte, error) {
	b := make([]byte, boot.MinSecret)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	return []byte(hex.EncodeToString(b) + "\n"), nil
}

// cloudKeys are the keys of this server. They are read at the first call.
func (s *Server) cloudKeys() (*keys, error) {
	s.keysOnce.Do(func() { s.keys, s.keysErr = openKeys(s.cfg.DataDir) })
	return s.keys, s.keysErr
}

// bootOf is what the instance of an intent gets for its first start. See fleet.Config.
func (s *Server) bootOf(name muster.ProviderName, token muster.Token) (cloud.Boot, error) {
	spec := s.config().Provider(string(name))
	k, err := s.cloudKeys()
	if err != nil {
		return cloud.Boot{}, err
	}
	c := boot.Config{Secret: k.secret, AuthorizedKey: k.authorized}
	if spec.SSH != nil && spec.SSH.KeyFile != "" {
		if c.AuthorizedKey, err = publicHalf(spec.SSH.KeyFile); err != nil {
			return cloud.Boot{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "ssh.key_file", Message: "provider " + string(name) + ": ssh.key_file", Err: err}
		}
	}
	if spec.UserDataFile != "" {
		b, err := os.ReadFile(spec.UserDataFile)
		if err != nil {
			return cloud.Boot{}, &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file", Message: "provider " + string(name) + ": user_data_file", Err: err}
		}
		c.UserData = string(b)
	}
	if p, ok := cloud.As[cloud.Bootable](s.providerNow(name)); ok {
		c.Limit = p.UserDataLimit()
	}
	return boot.For(c, token)
}

// publicHalf is the public key of a private key file, as a line. Errors name the file.
func publicHalf(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	signer, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), nil
}

// replacementKey is the host key that an instance shows after the first connection. ok is false for a
// node whose provider knows its host keys.
func (s *Server) replacementKey(n *state.Node) (private muster.Secret, line string, ok bool, err error) {
	if n.HostKey == "" {
		return muster.Secret{}, "", false, nil
	}
	k, err := s.cloudKeys()
	if err != nil {
		return muster.Secret{}, "", false, err
	}
	private, line, err = boot.Replacement(k.secret, n.Token)
	return private, line, err == nil, err
}
