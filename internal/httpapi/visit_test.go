package httpapi

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// visits are the requests that last as long as init works.
var visits = []struct{ method, path, body string }{
	{"GET", "/files?path=/", ""},
	{"DELETE", "/files?path=/a&recursive=true", ""},
	{"PUT", "/files/content?path=/a", "bytes"},
	{"PUT", "/files/archive?path=/a", "bytes"},
}

// mute takes all that comes, and says nothing.
func mute(c *net.UnixConn, _ initwire.Kind, _ []byte) { _, _ = io.Copy(io.Discard, c) }

// TestSilentInit: an init that says nothing, or takes nothing, holds no request.
func TestSilentInit(t *testing.T) {
	in := prepareInside(t, func(c *parts) { c.Silence = 50 * time.Millisecond })
	left := make(chan struct{})
	in.playInit(t, func(c *net.UnixConn, kind initwire.Kind, fields []byte) {
		if w, err := initwire.ParseFileWrite(fields); kind == initwire.KindFileWrite && err == nil && w.Path == "/deaf" {
			<-left
			return
		}
		mute(c, kind, fields)
	})
	for _, v := range visits {
		p := in.problem(in.do(v.method, in.path+v.path, v.body, bytesOf), 503, "unavailable")
		if !strings.Contains(p.Detail, "there was no answer") {
			t.Errorf("%s %s: %q", v.method, v.path, p.Detail)
		}
	}
	in.problem(in.do("PUT", in.path+"/files/content?path=/deaf", strings.Repeat("x", 8<<20), bytesOf), 503, "unavailable")
	close(left)
}

// TestSlowInit: one that goes on is waited for, however long it takes in all.
func TestSlowInit(t *testing.T) {
	if testing.Short() {
		t.Skip("lasts seconds")
	}
	const silence, entries = 2 * time.Second, 8
	in := prepareInside(t, func(c *parts) { c.Silence = silence })
	in.playInit(t, func(c *net.UnixConn, _ initwire.Kind, _ []byte) {
		for range entries {
			<-time.After(silence / 7)
			_ = initwire.WriteFrame(c, initwire.KindFileEntry, (&initwire.FileEntry{Path: "/f", Name: "f", Type: initwire.TypeFile}).Fields())
		}
		_ = initwire.WriteFrame(c, initwire.KindDone, nil)
	})
	began := time.Now()
	list := as[api.FileList](in.bench, in.do("GET", in.path+"/files?path=/", ""))
	if len(list.Entries) != entries || time.Since(began) < silence {
		t.Errorf("%d entries in %s", len(list.Entries), time.Since(began))
	}
}

// TestStopEndsVisits: a server that stops waits for no init, and for no client that sends slowly.
func TestStopEndsVisits(t *testing.T) {
	for _, v := range visits {
		in := prepareInside(t)
		began := make(chan struct{}, 1)
		in.playInit(t, func(c *net.UnixConn, kind initwire.Kind, fields []byte) {
			began <- struct{}{}
			mute(c, kind, fields)
		})
		slow, w := io.Pipe()
		var body io.Reader
		if v.body != "" {
			body = slow
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		req, err := http.NewRequestWithContext(ctx, v.method, in.srv.URL+in.path+v.path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		bytesOf(req)
		go func() {
			<-began
			in.stop()
		}()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", v.method, v.path, err)
		} else {
			said, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != 503 || !strings.Contains(string(said), "stopping") {
				t.Errorf("%s %s: %d %s", v.method, v.path, resp.StatusCode, said)
			}
		}
		_ = w.Close()
		cancel()
	}
}
