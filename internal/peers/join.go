package peers

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/musterhq/muster"
)

const (
	// joinTime bounds the reading of a request to join, and twice of it the answer.
	joinTime = 30 * time.Second
	// joinMost bounds request and answer in bytes.
	joinMost = 1 << 20
	// clockMost is how far the clock of a joining server may be off. The log's time does not depend on it,
	// but certificates, cloud APIs and the times in logs do.
	clockMost = 30 * time.Second
)

// JoinRequest is what a server says that wants to join.
type JoinRequest struct {
	// Server is its id in the log, Name what its operator calls it.
	Server string `json:"server"`
	Name   string `json:"name"`
	// Address is where the others reach it, as host:port.
	Address string `json:"address"`
	// Version is that of its program, Reads the newest log format that it reads.
	Version string `json:"version"`
	Reads   int    `json:"reads"`
	// Now is its clock.
	Now time.Time `json:"now"`
	// Public is its public key, in PKIX form.
	Public []byte `json:"public"`
	Token  string `json:"token"`
}

// Admission is what a server that has joined needs beside its certificate.
type Admission struct {
	// Secrets are files of the cluster by their path below the data directory.
	Secrets map[string][]byte `json:"secrets"`
	// Elsewhere is the address of the server that can admit, if it is not the one that was asked. The
	// rest is empty then.
	Elsewhere string `json:"elsewhere,omitempty"`
}

// joinAnswer is the answer to a JoinRequest: an admission with a certificate, or why not.
type joinAnswer struct {
	Admission
	Error        string `json:"error,omitempty"`
	Certificate  []byte `json:"certificate,omitempty"`
	AuthorityKey []byte `json:"authority_key,omitempty"`
}

// serveJoin answers a request to join. What is checked here needs no knowledge of the cluster: token,
// clock, form. Admit decides the rest.
func (n *Node) serveJoin(w http.ResponseWriter, r *http.Request) {
	answer, err := n.admit(r)
	if err != nil {
		answer = &joinAnswer{Error: err.Error()}
		n.cfg.Logger.Warn("a server was not let join", "from", r.RemoteAddr, "error", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func (n *Node) admit(r *http.Request) (*joinAnswer, error) {
	var req JoinRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, joinMost)).Decode(&req); err != nil {
		return nil, fmt.Errorf("the request to join cannot be read: %w", err)
	}
	i, now := n.identity.Load(), n.cfg.Clock()
	// The token comes first: nobody without one learns anything.
	if err := i.checkToken(muster.NewSecret(req.Token), now); err != nil {
		return nil, err
	}
	if !goodID(req.Server) {
		return nil, fmt.Errorf("%q cannot be the id of a server", req.Server)
	}
	if _, _, err := net.SplitHostPort(req.Address); err != nil {
		return nil, fmt.Errorf("the address %q of the server that joins is no host:port", req.Address)
	}
	if off := req.Now.Sub(now); off.Abs() > clockMost {
		return nil, fmt.Errorf("the clock of the server that joins is %s off (at most %s is allowed); set it, best by NTP", off.Round(time.Second), clockMost)
	}
	key, err := x509.ParsePKIXPublicKey(req.Public)
	if err != nil {
		return nil, fmt.Errorf("the public key: %w", err)
	}
	public, ok := key.(*ecdsa.PublicKey)
	if !ok {
		return nil, errors.New("the public key is no ECDSA key")
	}
	if n.cfg.Admit == nil {
		return nil, errors.New("this server admits no others")
	}
	admission, err := n.cfg.Admit(r.Context(), &req)
	if err != nil {
		return nil, err
	}
	if admission.Elsewhere != "" {
		return &joinAnswer{Admission: *admission}, nil
	}
	answer := &joinAnswer{Admission: *admission}
	if answer.Certificate, err = i.authority.sign(req.Server, public, now); err != nil {
		return nil, err
	}
	answer.AuthorityKey, err = x509.MarshalPKCS8PrivateKey(i.authority.key)
	return answer, err
}

// Join asks the server at an address to let this one join its cluster. req needs neither key nor time. The
// answer is trusted because the other side's authority is the one that the token names.
//
// The errors are sentences for the operator of the joining server.
func Join(ctx context.Context, address string, token muster.Secret, req JoinRequest, clock func() time.Time) (*Identity, *Admission, error) {
	want, err := decodeToken(token)
	if err != nil {
		return nil, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if req.Public, err = x509.MarshalPKIXPublicKey(key.Public()); err != nil {
		return nil, nil, err
	}
	req.Token = token.Reveal()
	// Any server takes the request; only the leader can say yes. There may be a new leader on the way.
	for range 3 {
		req.Now = clock()
		authority, answer, err := ask(ctx, address, authorityOf(want), &req)
		switch {
		case errors.As(err, new(tls.RecordHeaderError)):
			return nil, nil, fmt.Errorf("join by the server at %s: that is not its port for other servers; give its cluster.address, as `muster servers list` shows it", address)
		case err != nil:
			return nil, nil, fmt.Errorf("join by the server at %s: %w", address, err)
		case answer.Error != "":
			return nil, nil, fmt.Errorf("the server at %s does not let this one join: %s", address, answer.Error)
		case answer.Elsewhere != "":
			address = answer.Elsewhere
			continue
		}
		a, err := newAuthority(authority.Raw, answer.AuthorityKey)
		if err != nil {
			return nil, nil, fmt.Errorf("join by the server at %s: the authority's key: %w", address, err)
		}
		i, err := assemble(a, answer.Certificate, key)
		return i, &answer.Admission, err
	}
	return nil, nil, fmt.Errorf("join: the servers of the cluster send this one from one to the other, lastly to %s; try again when they have a leader", address)
}

// ask sends one request to join. authority is the certificate of the other side's authority, whose
// fingerprint is the one that was wanted.
func ask(ctx context.Context, address string, want [sha256.Size]byte, req *JoinRequest) (authority *x509.Certificate, answer *joinAnswer, err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{protoJoin},
		// No root is known yet. The token has the fingerprint of the one, and the clock may be wrong,
		// which the other side says better.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates[1:] {
				if sha256.Sum256(c.RawSubjectPublicKeyInfo) == want && s.PeerCertificates[0].CheckSignatureFrom(c) == nil {
					authority = c
					return nil
				}
			}
			return ErrTokenCluster
		},
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return (&tls.Dialer{Config: config}).DialContext(ctx, network, address)
		},
	}
	ctx, cancel := context.WithTimeout(ctx, 2*joinTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+"/join", bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	res, err := transport.RoundTrip(r)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	answer = &joinAnswer{}
	if err := json.NewDecoder(io.LimitReader(res.Body, joinMost)).Decode(answer); err != nil {
		return nil, nil, fmt.Errorf("its answer cannot be read (%s): %w; is this the servers' port of a Muster server?", res.Status, err)
	}
	return authority, answer, nil
}
