package destinations

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/outbound"
)

// An agent fetches through its server's proxy, which may be on a loopback address; what may not be
// fetched from is refused as without one, and never asked of the proxy.
func TestTransportProxy(t *testing.T) {
	before := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = before })
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.String()
		_, _ = io.WriteString(w, "by the proxy")
	}))
	defer proxy.Close()
	if err := (outbound.Settings{Proxy: proxy.URL, Field: "network.proxy"}).Use(); err != nil {
		t.Fatal(err)
	}
	tr := Allowed{}.Transport(time.Minute)
	defer tr.CloseIdleConnections()
	client := http.Client{Transport: tr}
	answer, err := client.Get("http://files.invalid/a")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if b, err := io.ReadAll(answer.Body); err != nil || string(b) != "by the proxy" {
		t.Errorf("%q, %v", b, err)
	}
	if got := <-asked; got != "http://files.invalid/a" {
		t.Errorf("the proxy was asked for %s", got)
	}
	for _, target := range []string{"http://169.254.169.254/latest/meta-data/", "http://127.0.0.1:1/", "http://100.100.100.200/"} {
		_, err := client.Get(target)
		if err == nil || !strings.Contains(err.Error(), "nothing may be fetched from") {
			t.Errorf("%s: %v", target, err)
		}
	}
	select {
	case got := <-asked:
		t.Errorf("the proxy was asked for %s", got)
	default:
	}
}
