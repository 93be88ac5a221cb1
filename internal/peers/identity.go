package peers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/atomicfile"
)

// The files of an identity, readable by the server's user alone.
const (
	authorityCertFile = "ca.crt"
	authorityKeyFile  = "ca.key"
	serverCertFile    = "server.crt"
	serverKeyFile     = "server.key"
)

// How long certificates are good for. The authority outlives every cluster that anybody will upgrade
// in place; to replace it, found a new cluster from a backup. A server renews its own certificate in
// the last third of its life.
const (
	authorityLife = 30 * 365 * 24 * time.Hour
	serverLife    = 365 * 24 * time.Hour
	// early is how long before its making a certificate is good already, so that a server whose clock is
	// some hours behind accepts it.
	early = 48 * time.Hour
)

// suffix follows a server's id in the name that its certificate has. The name is never looked up.
const suffix = ".server.muster.internal"

// maxPEM bounds what is read as a certificate or a key, in bytes.
const maxPEM = 64 << 10

// Authority signs the certificates of one cluster's servers.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Found makes the authority of a new cluster.
func Found(now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Muster cluster"}, NotBefore: now.Add(-early), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{cert: cert, key: key}, err
}

// newSerial is a random serial number of a certificate. RFC 5280 wants it positive and at most 20 bytes.
func newSerial() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
}

// fingerprint identifies the authority by its public key.
func (a *Authority) fingerprint() [sha256.Size]byte {
	return sha256.Sum256(a.cert.RawSubjectPublicKeyInfo)
}

// sign makes the certificate of a server's key.
func (a *Authority) sign(server string, public *ecdsa.PublicKey, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: server}, DNSNames: []string{server + suffix},
		NotBefore: now.Add(-early), NotAfter: now.Add(serverLife), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	return x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
}

// Identity is what a server of a cluster shows to the others, and by which it knows them.
type Identity struct {
	// Server is the id of the server in the log.
	Server    string
	authority *Authority
	// cert is the server's certificate with the authority's behind it, so that whoever joins can compare
	// the authority with its token.
	cert  tls.Certificate
	roots *x509.CertPool
}

// NewIdentity makes the identity of a server, with a new key.
func NewIdentity(a *Authority, server string, now time.Time) (*Identity, error) {
	if !goodID(server) {
		return nil, fmt.Errorf("%q cannot be the id of a server: 1 to 40 of a-z, 0-9 and - are wanted", server)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := a.sign(server, &key.PublicKey, now)
	if err != nil {
		return nil, err
	}
	return assemble(a, der, key)
}

// goodID says whether a server's id can stand in the name of a certificate.
func goodID(s string) bool {
	ok := func(r rune) bool { return r == '-' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' }
	return s != "" && len(s) <= 40 && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

// assemble checks that the parts belong to each other.
func assemble(a *Authority, der []byte, key *ecdsa.PrivateKey) (*Identity, error) {
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the certificate is not that of the key")
	}
	if err := leaf.CheckSignatureFrom(a.cert); err != nil {
		return nil, fmt.Errorf("the certificate is not of this cluster's authority: %w", err)
	}
	id, ok := serverOf(leaf)
	if !ok {
		return nil, errors.New("the certificate names no server")
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &Identity{
		Server: id, authority: a, roots: roots,
		cert: tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: leaf},
	}, nil
}

// serverOf is the id of the server that a certificate names.
func serverOf(c *x509.Certificate) (string, bool) {
	if len(c.DNSNames) != 1 {
		return "", false
	}
	id, ok := strings.CutSuffix(c.DNSNames[0], suffix)
	return id, ok && goodID(id)
}

// Expires is when the server's certificate ends.
func (i *Identity) Expires() time.Time { return i.cert.Leaf.NotAfter }

// due says whether the certificate is in the last third of its life.
func (i *Identity) due(now time.Time) bool { return now.After(i.Expires().Add(-serverLife / 3)) }

// Save writes the identity into dir, which it makes. The keys are written before the certificates, and
// Load wants all four, so a crash in between leaves a directory that counts as none.
func (i *Identity) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	authorityKey, err := keyPEM(i.authority.key)
	if err != nil {
		return err
	}
	serverKey, err := keyPEM(i.cert.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{authorityKeyFile, authorityKey},
		{serverKeyFile, serverKey},
		{serverCertFile, certPEM(i.cert.Certificate[0])},
		{authorityCertFile, certPEM(i.authority.cert.Raw)},
	} {
		if err := atomicfile.Write(filepath.Join(dir, f.name), f.content); err != nil {
			return err
		}
	}
	return nil
}

// Load reads the identity that Save wrote, and renews and saves the certificate if it is due. An error
// that is fs.ErrNotExist says that there is none. now is the system's clock.
func Load(dir string, now time.Time) (*Identity, error) {
	read := func(name, kind string) ([]byte, error) {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if block, rest := pem.Decode(b); block != nil && block.Type == kind && len(rest) == 0 && len(b) <= maxPEM {
			return block.Bytes, nil
		}
		return nil, fmt.Errorf("%s: one PEM block %q is wanted; put back the file that was there", path, kind)
	}
	// The authority's certificate is written last, so it is looked for first.
	authorityDER, err := read(authorityCertFile, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	parts := map[string][]byte{}
	for name, kind := range map[string]string{authorityKeyFile: "PRIVATE KEY", serverKeyFile: "PRIVATE KEY", serverCertFile: "CERTIFICATE"} {
		parts[name], err = read(name, kind)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: the file is missing and the others are there; put it back", filepath.Join(dir, name))
		}
		if err != nil {
			return nil, err
		}
	}
	a, err := newAuthority(authorityDER, parts[authorityKeyFile])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, authorityKeyFile), err)
	}
	key, err := parseKey(parts[serverKeyFile])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, serverKeyFile), err)
	}
	i, err := assemble(a, parts[serverCertFile], key)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, serverCertFile), err)
	}
	return i.renewed(dir, now)
}

// renewed is the identity, or one of the same key with a new certificate, which is in dir then.
func (i *Identity) renewed(dir string, now time.Time) (*Identity, error) {
	if !i.due(now) {
		return i, nil
	}
	key := i.cert.PrivateKey.(*ecdsa.PrivateKey)
	der, err := i.authority.sign(i.Server, &key.PublicKey, now)
	if err != nil {
		return nil, err
	}
	if i, err = assemble(i.authority, der, key); err != nil {
		return nil, err
	}
	return i, atomicfile.Write(filepath.Join(dir, serverCertFile), certPEM(der))
}

// newAuthority checks that the key is that of the certificate.
func newAuthority(der, keyDER []byte) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyDER)
	if err != nil {
		return nil, err
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(key.Public()) || !cert.IsCA {
		return nil, errors.New("it is not the key of the authority's certificate")
	}
	return &Authority{cert: cert, key: key}, nil
}

func parseKey(der []byte) (*ecdsa.PrivateKey, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T; an ECDSA key is wanted", k)
	}
	return key, nil
}

func keyPEM(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
