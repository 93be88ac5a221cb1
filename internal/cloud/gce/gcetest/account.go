package gcetest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// tokenPath is where service accounts get access tokens.
const tokenPath = "/token"

const accountEmail = "muster@" + Project + ".iam.gserviceaccount.com"

// accountKey is the key of the project's service account.
var accountKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err) // it never fails with this reader
	}
	return key
})

// CredentialsFile writes a file with a key of the project's service account, as gcloud does. Endpoint is
// the address of the API as its user sees it, as URL: tokens come from the same host.
func (c *Cloud) CredentialsFile(endpoint string) string {
	c.t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(accountKey())
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{"type": "service_account", "project_id": Project, "client_email": accountEmail, "private_key_id": "1",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"token_uri":   strings.TrimSuffix(endpoint, "/compute/v1") + tokenPath})
	if err != nil {
		c.t.Fatal(err)
	}
	file := filepath.Join(c.t.TempDir(), "account.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// signIn gives Token to who signs for the service account (RFC 7523).
func (c *Cloud) signIn(w http.ResponseWriter, r *http.Request) {
	if !c.signed(r.FormValue("assertion")) || r.FormValue("grant_type") != "urn:ietf:params:oauth:grant-type:jwt-bearer" {
		answer(w, http.StatusBadRequest, object{"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
		return
	}
	answer(w, http.StatusOK, object{"access_token": Token, "token_type": "Bearer", "expires_in": 3600})
}

// signed reports whether a JWT is signed by the account's key, and is of its account and of now.
func (c *Cloud) signed(jwt string) bool {
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(&accountKey().PublicKey, crypto.SHA256, sum[:], signature) != nil {
		return false
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	var q struct {
		Issuer  string `json:"iss"`
		Scope   string `json:"scope"`
		Expires int64  `json:"exp"`
	}
	return err == nil && json.Unmarshal(claims, &q) == nil && q.Issuer == accountEmail && strings.Contains(q.Scope, "auth/compute") &&
		time.Unix(q.Expires, 0).After(time.Now())
}
