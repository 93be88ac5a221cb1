package claim

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/musterhq/muster"
)

// secretPrefix begins what the holder of a claim shows in place of the token.
const secretPrefix = "mcs-"

// Secret lets its holder use a claim's runner. It is derived and kept nowhere, so that a claim that
// is asked for again has the same one.
func (s *Service) Secret(id muster.ClaimID) muster.Secret {
	h := hmac.New(sha256.New, []byte(s.cfg.Key.Reveal()))
	_, _ = h.Write([]byte(id))
	return muster.NewSecret(secretPrefix + string(id) + "-" + hex.EncodeToString(h.Sum(nil)[:20]))
}

// Holder is the claim whose secret a token is, if it is meant to be one: shown. It is not right if
// the secret is wrong. That the claim lives, or ever did, is not said. Comparing takes the same
// time whatever the token is.
func (s *Service) Holder(token string) (id muster.ClaimID, shown, right bool) {
	rest, is := strings.CutPrefix(token, secretPrefix)
	if !is {
		return "", false, false
	}
	name, _, _ := strings.Cut(rest, "-")
	id = muster.ClaimID(name)
	return id, true, hmac.Equal([]byte(token), []byte(s.Secret(id).Reveal()))
}
