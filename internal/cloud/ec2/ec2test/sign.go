package ec2test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// maxSkew is how far the date of a signature may be from the server's time.
const maxSkew = 15 * time.Minute

// Key is one pair of credentials. A request of temporary ones carries Session.
type Key struct{ ID, Secret, Session string }

// authorize checks the signature of a request. It computes the signature by AWS's own description
// of version 4 and uses no library for it, so that a client is not checked against itself.
func (s *Server) authorize(r *http.Request, body []byte, now time.Time) *failure {
	header := r.Header.Get("Authorization")
	fields, ok := strings.CutPrefix(header, "AWS4-HMAC-SHA256 ")
	if !ok {
		return fail(400, "MissingAuthenticationToken", "Request is missing Authentication Token")
	}
	parts := map[string]string{}
	for p := range strings.SplitSeq(fields, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		parts[k] = v
	}
	scope := strings.Split(parts["Credential"], "/")
	if len(scope) != 5 || scope[4] != "aws4_request" {
		return fail(400, "IncompleteSignature", "The credential scope is not KEY/DATE/REGION/SERVICE/aws4_request")
	}
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil || !strings.HasPrefix(date, scope[1]) {
		return fail(400, "IncompleteSignature", "Date must be in ISO-8601 'basic format' and agree with the credential scope")
	}
	// EC2 says RequestExpired for a clock that is ahead as well. The driver's error has to name the clock.
	if d := now.Sub(at); d > maxSkew || d < -maxSkew {
		return fail(400, "RequestExpired", "Request has expired.")
	}
	key, known := s.keyOf(scope[0])
	if !known {
		return fail(401, "AuthFailure", "AWS was not able to validate the provided access credentials")
	}
	// The price list is served in a few regions only, so its scope has another one.
	if want := serviceOf(r); scope[3] != want || want == "ec2" && scope[2] != s.cfg.Region {
		return fail(403, "SignatureDoesNotMatch", "Credential should be scoped to service %s in region %s", want, s.cfg.Region)
	}
	// A role's credentials are three parts. One without the third is another identity.
	if key.Session != r.Header.Get("X-Amz-Security-Token") {
		return fail(401, "AuthFailure", "The security token included in the request is invalid")
	}
	signed := strings.Split(parts["SignedHeaders"], ";")
	if !slices.Contains(signed, "host") || !slices.Contains(signed, "x-amz-date") {
		return fail(403, "SignatureDoesNotMatch", "host and x-amz-date must be signed")
	}
	if !hmac.Equal([]byte(parts["Signature"]), []byte(signature(r, body, key.Secret, scope, date, signed))) {
		return fail(403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided.")
	}
	return nil
}

// serviceOf tells by the target which of the three services on this address is called.
func serviceOf(r *http.Request) string {
	switch target := r.Header.Get("X-Amz-Target"); {
	case strings.HasPrefix(target, "AmazonSSM."):
		return "ssm"
	case target != "":
		return "pricing"
	}
	return "ec2"
}

// signature is what the request must carry.
func signature(r *http.Request, body []byte, secret string, scope []string, date string, signed []string) string {
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/"
	}
	var b strings.Builder
	b.WriteString(r.Method + "\n" + path + "\n" + strings.ReplaceAll(canonicalQuery(r.URL.Query()), "+", "%20") + "\n")
	for _, name := range signed {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		// Go keeps the length out of the header, and the signature covers it if the client says so.
		case "content-length":
			value = r.Header.Get("Content-Length")
			if value == "" {
				value = itoa(len(body))
			}
		}
		b.WriteString(name + ":" + strings.Join(strings.Fields(value), " ") + "\n")
	}
	b.WriteString("\n" + strings.Join(signed, ";") + "\n" + hexSum(body))
	text := "AWS4-HMAC-SHA256\n" + date + "\n" + strings.Join(scope[1:], "/") + "\n" + hexSum([]byte(b.String()))
	key := []byte("AWS4" + secret)
	for _, part := range scope[1:] {
		key = mac(key, part)
	}
	return hex.EncodeToString(mac(key, text))
}

// canonicalQuery is sorted by name; the caller writes spaces as version 4 wants them.
func canonicalQuery(q url.Values) string { return q.Encode() }

// mac is one step of the chain by which a key is bound to a day, a region and a service.
func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// hexSum covers the body, so that nobody on the way can change it.
func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
