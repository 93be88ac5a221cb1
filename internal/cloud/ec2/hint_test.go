package ec2

import (
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

type noAddress struct{}

func (noAddress) RoundTrip(q *http.Request) (*http.Response, error) {
	return nil, &net.DNSError{Err: "no such host", Name: q.URL.Hostname(), IsNotFound: true}
}

// What cannot work at all says which field is wrong and what to do.
func TestHints(t *testing.T) {
	config := func(edit func(*Config)) Config {
		c := Config{Name: "aws", Owner: "o", Region: "eu-nowhere-1", Subnets: []string{"subnet-0a"}, SecurityGroups: []string{"sg-0c"},
			CredentialsFile: filepath.Join(t.TempDir(), "credentials"), Client: &http.Client{Transport: noAddress{}}}
		edit(&c)
		return c
	}
	says := func(err error, parts ...string) {
		t.Helper()
		if err == nil {
			t.Fatal("no error")
		}
		for _, part := range parts {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v does not say %q", err, part)
			}
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "")
	missing := config(func(*Config) {})
	p, err := New(missing)
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.List(t.Context(), "")
	says(err, "no credentials: credentials.file, "+missing.CredentialsFile)
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDTEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	if p, err = New(config(func(c *Config) { c.CredentialsFile = "" })); err != nil {
		t.Fatal(err)
	}
	_, err = p.List(t.Context(), "")
	says(err, "ec2.eu-nowhere-1.amazonaws.com has no address: check the spelling of region eu-nowhere-1")
	if !muster.IsKind(err, muster.FaultTransient) {
		t.Errorf("%v: a name server that is out of order says the same", err)
	}
	_, err = New(config(func(c *Config) { c.Image = "ami-0a" }))
	says(err, "provider aws: ssh.user is missing: name the login user of image ami-0a")
}
