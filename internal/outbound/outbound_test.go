package outbound

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// proxy is a forward proxy, for HTTPS by CONNECT and for plain HTTP. It alone knows where the names
// of its map are, so that what reaches them has come through it.
type proxy struct {
	*httptest.Server
	names    map[string]string
	password string

	mu   sync.Mutex
	seen []string
}

func newProxy(t *testing.T, password string, names map[string]string) *proxy {
	p := &proxy{names: names, password: password}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.seen)
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.Host)
	p.mu.Unlock()
	// Credentials of a proxy come as those of a request do, in another header.
	asked := http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	if _, password, _ := asked.BasicAuth(); password != p.password {
		http.Error(w, "who are you", http.StatusProxyAuthRequired)
		return
	}
	address, ok := p.names[r.Host]
	if !ok {
		http.Error(w, "not allowed", http.StatusForbidden)
		return
	}
	to, err := net.Dial("tcp", address)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	if r.Method != http.MethodConnect {
		defer to.Close()
		r.Header.Del("Proxy-Authorization")
		if err := r.Write(to); err != nil {
			return
		}
		answer, err := http.ReadResponse(bufio.NewReader(to), r)
		if err != nil {
			return
		}
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(w, answer.Body)
		return
	}
	from, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		to.Close()
		return
	}
	_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
	go func() { _, _ = io.Copy(to, buffered); to.Close() }()
	go func() { _, _ = io.Copy(from, to); from.Close() }()
}

func (p *proxy) url(user string) string {
	u, _ := url.Parse(p.URL)
	if user != "" {
		u.User = url.UserPassword(user, p.password)
	}
	return u.String()
}

func get(t *testing.T, s Settings, target string) (string, error) {
	t.Helper()
	tr, err := s.apply(http.DefaultTransport.(*http.Transport).Clone())
	if err != nil {
		t.Fatal(err)
	}
	defer tr.CloseIdleConnections()
	r, err := (&http.Client{Transport: tr}).Get(target)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if r.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s: %s", r.Status, b)
	}
	return string(b), err
}

func noEnvironment(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_DIR"} {
		t.Setenv(name, "")
		t.Setenv(strings.ToLower(name), "")
	}
}

// Plain and TLS requests go through the proxy with its password, by names that only the proxy
// resolves, and the certificate of a private authority is trusted where it is given.
func TestThroughProxy(t *testing.T) {
	noEnvironment(t)
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != "" {
			t.Error("the proxy's password was sent to a server")
		}
		_, _ = io.WriteString(w, "hello")
	})
	plain, secure := httptest.NewServer(hello), httptest.NewTLSServer(hello)
	defer plain.Close()
	defer secure.Close()
	p := newProxy(t, "s3cret", map[string]string{
		"plain.invalid": plain.Listener.Addr().String(), "example.com:443": secure.Listener.Addr().String(),
	})
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	s := Settings{Proxy: p.url("anna"), CA: ca, Field: "network.proxy"}
	// httptest's certificate is for example.com.
	for _, target := range []string{"http://plain.invalid/", "https://example.com/"} {
		if got, err := get(t, s, target); err != nil || got != "hello" {
			t.Errorf("%s: %q, %v", target, got, err)
		}
	}
	if want := []string{"GET plain.invalid", "CONNECT example.com:443"}; !slices.Equal(p.requests(), want) {
		t.Errorf("the proxy saw %q, want %q", p.requests(), want)
	}
	s.CA = ""
	var unknown x509.UnknownAuthorityError
	if _, err := get(t, s, "https://example.com/"); err == nil || !errors.As(err, &unknown) {
		t.Errorf("without the authority: %v", err)
	}
}

// Errors name the proxy and where it is set, never its password.
func TestErrors(t *testing.T) {
	noEnvironment(t)
	p := newProxy(t, "s3cret", nil)
	gone := newProxy(t, "s3cret", nil)
	gone.Close()
	host := strings.TrimPrefix(p.URL, "http://")
	for _, tt := range []struct {
		s    Settings
		want []string
	}{
		{Settings{Proxy: p.url("anna"), Field: "network.proxy"}, []string{"proxy http://" + host + " (network.proxy) refused a connection to example.com:443: 403 Forbidden"}},
		{Settings{Proxy: strings.Replace(p.URL, "://", "://anna:wr0ng@", 1), Field: "pools[a].network.proxy"}, []string{"(pools[a].network.proxy)", "407 Proxy Authentication Required"}},
		{Settings{Proxy: gone.url("anna"), Field: "network.proxy"}, []string{"proxy " + strings.TrimPrefix(gone.URL, "http://") + " (network.proxy) cannot be reached", "refused"}},
	} {
		_, err := get(t, tt.s, "https://example.com/")
		if err == nil {
			t.Errorf("%s: no error", tt.s)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v\ndoes not contain %q", err, want)
			}
		}
		for _, text := range []string{err.Error(), tt.s.String(), fmt.Sprintf("%v %+v %#v", tt.s, tt.s, tt.s)} {
			if strings.Contains(text, "s3cret") || strings.Contains(text, "wr0ng") {
				t.Errorf("shows the password: %s", text)
			}
		}
	}
	for _, wrong := range []string{"ftp://anna:s3cret@proxy", "http://%zzs3cret", "http://"} {
		err := Settings{Proxy: wrong, Field: "network.proxy"}.Use()
		if err == nil || !strings.HasPrefix(err.Error(), "network.proxy: is ") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if err := (Settings{CA: "no PEM"}).Use(); err == nil || !strings.Contains(err.Error(), "network.ca_file") {
		t.Errorf("no certificates: %v", err)
	}
}

// What a transport sends through the proxy and what it does not, by settings and environment.
func TestDirect(t *testing.T) {
	noEnvironment(t)
	const conf, env = "http://conf.invalid:3128", "http://env.invalid:8080"
	for _, tt := range []struct {
		s             Settings
		env           bool
		target, proxy string
	}{
		{Settings{}, false, "https://example.com/", ""},
		{Settings{}, true, "https://example.com/", env},
		{Settings{}, true, "http://169.254.169.254/latest/", ""},
		{Settings{}, true, "http://10.1.2.3/", ""}, // by NO_PROXY
		{Settings{Proxy: None}, true, "https://example.com/", ""},
		{Settings{Proxy: conf}, true, "https://example.com/", conf},
		{Settings{Proxy: conf}, true, "http://10.1.2.3/", conf}, // NO_PROXY goes with the environment's
		{Settings{Proxy: conf, NoProxy: ".example.com,10.0.0.0/8"}, false, "https://a.example.com/", ""},
		{Settings{Proxy: conf, NoProxy: ".example.com,10.0.0.0/8"}, false, "http://10.9.9.9/", ""},
		{Settings{Proxy: conf, NoProxy: ".example.com,10.0.0.0/8"}, false, "http://11.9.9.9/", conf},
		{Settings{Proxy: conf}, false, "http://169.254.169.254/latest/", ""},
		{Settings{Proxy: conf}, false, "http://[fd00:ec2::254]/latest/", ""},
		{Settings{Proxy: conf}, false, "http://metadata.google.internal/", ""},
		{Settings{Proxy: conf}, false, "http://100.100.100.200/", ""},
		{Settings{Proxy: conf}, false, "http://168.63.129.16/", ""},
		{Settings{Proxy: conf}, false, "http://127.0.0.1:5000/", ""},
		{Settings{Proxy: conf}, false, "http://localhost:5000/", ""},
	} {
		if tt.env {
			t.Setenv("HTTPS_PROXY", env)
			t.Setenv("HTTP_PROXY", env)
			t.Setenv("NO_PROXY", "10.0.0.0/8")
		} else {
			noEnvironment(t)
		}
		tr, err := tt.s.apply(&http.Transport{DialContext: (&net.Dialer{}).DialContext})
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(tt.target)
		got, err := tr.Proxy(&http.Request{URL: u})
		text := ""
		if got != nil {
			text = got.String()
		}
		if err != nil || text != tt.proxy {
			t.Errorf("%s, environment %v: %s goes through %q, want %q (%v)", tt.s, tt.env, tt.target, text, tt.proxy, err)
		}
	}
}

// The environment says the same to libraries that know nothing else.
func TestEnviron(t *testing.T) {
	noEnvironment(t)
	dir := filepath.Join(t.TempDir(), "ca")
	if err := (Settings{Proxy: "http://p.invalid:1", NoProxy: "a.invalid", CA: "certificates"}).Environ(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"HTTP_PROXY": "http://p.invalid:1", "https_proxy": "http://p.invalid:1", "no_proxy": "a.invalid," + exempt, "SSL_CERT_DIR": systemDirs + ":" + dir,
	} {
		if got := os.Getenv(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "network-ca.pem")); err != nil || string(b) != "certificates" {
		t.Errorf("%q, %v", b, err)
	}
	if err := (Settings{Proxy: None}).Environ(dir); err != nil || os.Getenv("HTTPS_PROXY") != "" || os.Getenv("http_proxy") != "" {
		t.Errorf("none leaves %q, %v", os.Getenv("HTTPS_PROXY"), err)
	}
}

// What one side writes the other reads, and no error repeats what is written.
func TestParse(t *testing.T) {
	s := Settings{Proxy: "http://a:b@p.invalid:1", NoProxy: "x", CA: "c", Field: "network.proxy"}
	if got, err := Parse(s.Encode()); err != nil || got != s {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := Parse([]byte(`{"proxy": s3cret}`)); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}
