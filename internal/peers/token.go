package peers

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/musterhq/muster"
)

// A token for joining says which authority to trust and proves that a server of the cluster gave it out.
// Nothing of it is kept: any server of the cluster checks it by the authority's key. Its bytes are
//
//	fingerprint of the authority's key (32), end in seconds since the epoch (8), random (8), HMAC of these (32)
//
// in base64url behind tokenPrefix.
const (
	tokenPrefix = "muster-join-"
	tokenBody   = sha256.Size + 8 + 8
	tokenSize   = tokenBody + sha256.Size
)

// Why a token is refused. The words are for whoever joins.
var (
	ErrNoToken      = errors.New("no join token was given; get one with `muster servers join-token` on a server of the cluster, and give it with --token-file")
	ErrTokenForm    = errors.New("the join token is not whole; copy all of what `muster servers join-token` prints")
	ErrTokenExpired = errors.New("the join token has expired; get another one with `muster servers join-token` on a server of the cluster")
	ErrTokenCluster = errors.New("the join token is of another cluster; get one with `muster servers join-token` on a server of this one")
)

// NewToken makes a token with which servers may join until the end.
func (i *Identity) NewToken(end time.Time) (muster.Secret, error) {
	b := make([]byte, 0, tokenSize)
	authority := i.authority.fingerprint()
	b = append(b, authority[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(end.Unix()))
	var random [8]byte
	if _, err := rand.Read(random[:]); err != nil {
		return muster.Secret{}, err
	}
	b = append(b, random[:]...)
	mac, err := i.authority.mac(b)
	if err != nil {
		return muster.Secret{}, err
	}
	return encoded(append(b, mac...)), nil
}

// encoded is a token as text.
func encoded(b []byte) muster.Secret {
	return muster.NewSecret(tokenPrefix + base64.RawURLEncoding.EncodeToString(b))
}

// mac authenticates the body of a token.
func (a *Authority) mac(body []byte) ([]byte, error) {
	secret, err := a.key.Bytes()
	if err != nil {
		return nil, err
	}
	key, err := hkdf.Key(sha256.New, secret, nil, "muster join token", sha256.Size)
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, key)
	m.Write(body)
	return m.Sum(nil), nil
}

// checkToken says why a token is no good now.
func (i *Identity) checkToken(token muster.Secret, now time.Time) error {
	b, err := decodeToken(token)
	if err != nil {
		return err
	}
	if i.authority.fingerprint() != authorityOf(b) {
		return ErrTokenCluster
	}
	mac, err := i.authority.mac(b[:tokenBody])
	if err != nil {
		return err
	}
	if !hmac.Equal(mac, b[tokenBody:]) {
		return ErrTokenForm
	}
	if end := time.Unix(int64(binary.BigEndian.Uint64(b[sha256.Size:])), 0); !now.Before(end) {
		return fmt.Errorf("%w (it was good until %s)", ErrTokenExpired, end.UTC().Format(time.RFC3339))
	}
	return nil
}

func decodeToken(token muster.Secret) ([]byte, error) {
	if strings.TrimSpace(token.Reveal()) == "" {
		return nil, ErrNoToken
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(token.Reveal()), tokenPrefix)
	if !ok {
		return nil, ErrTokenForm
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != tokenSize {
		return nil, ErrTokenForm
	}
	return b, nil
}

// authorityOf is the fingerprint in a decoded token.
func authorityOf(token []byte) [sha256.Size]byte { return [sha256.Size]byte(token[:sha256.Size]) }
