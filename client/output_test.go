package client

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/musterhq/muster/api"
)

// recorded is a stream of output as a server gives it.
type recorded struct {
	t       *testing.T
	all     []byte
	there   int64        // what written begins with
	kept    int          // bytes before it are gone
	written atomic.Int64 // how much of it is there; the state is complete when all is
	piece   int          // a connection is cut, or ends, after so many
	asked   []string
}

func (r *recorded) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.asked = append(r.asked, req.URL.String())
	q := req.URL.Query()
	start, _ := strconv.Atoi(q.Get("offset"))
	total := int(r.written.Load())
	if tail, err := strconv.Atoi(q.Get("tail")); err == nil {
		start = max(total-tail, 0)
	}
	start = max(start, r.kept)
	state := "open"
	if total == len(r.all) {
		state = "complete"
	}
	w.Header().Set("Muster-Output-Start", strconv.Itoa(start))
	w.Header().Set("Muster-Output-State", state)
	w.Header().Set("Trailer", "Muster-Output-Note")
	if state == "complete" {
		w.Header().Set("Muster-Output-End", strconv.Itoa(total))
	}
	end := total
	if q.Get("follow") == "true" {
		end = len(r.all)
	}
	end = min(end, start+r.piece)
	_, _ = w.Write(r.all[min(start, end):end])
	r.written.Store(max(r.written.Load(), int64(end)))
	if end < total || end < len(r.all) && q.Get("follow") == "true" {
		cut(r.t, w)
		return
	}
	w.Header().Set("Muster-Output-Note", "read to "+strconv.Itoa(end))
}

func TestOutputGoesOnWhereItWas(t *testing.T) {
	all := bytes.Repeat([]byte("0123456789\x00\xff\n"), 100)
	for _, tt := range []struct {
		name  string
		r     *recorded
		query OutputQuery
		want  []byte
		drop  int64
		calls int
	}{
		{"cut while followed", &recorded{piece: 500}, OutputQuery{Follow: true}, all, 0, 3},
		{"cut while read", &recorded{piece: 500, there: 1300}, OutputQuery{}, all, 0, 3},
		{"what is there now", &recorded{piece: 5000, there: 700}, OutputQuery{}, all[:700], 0, 1},
		{"from an offset", &recorded{piece: 5000, there: 1300}, OutputQuery{Offset: 1000}, all[1000:], 0, 1},
		{"the oldest is gone", &recorded{piece: 5000, kept: 300, there: 1300}, OutputQuery{Offset: 100, Follow: true}, all[300:], 200, 1},
		{"tail, cut", &recorded{piece: 60, kept: 300, there: 1300}, OutputQuery{Tail: 100}, all[1200:], 0, 2},
		{"nothing", &recorded{piece: 5000, kept: 1300, there: 1300}, OutputQuery{Offset: 1300, Follow: true}, nil, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.r.t, tt.r.all = t, all
			tt.r.written.Store(tt.r.there)
			tt.query.Alloc, tt.query.Stream = "u-0-1", Stdout
			o, err := serve(t, tt.r).Output(t.Context(), tt.query)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = o.Close() }()
			got, err := io.ReadAll(o)
			if err != nil || !bytes.Equal(got, tt.want) {
				t.Errorf("%d bytes, want %d: %v", len(got), len(tt.want), err)
			}
			if o.Dropped() != tt.drop || o.Offset() != int64(tt.r.written.Load()) {
				t.Errorf("dropped %d, offset %d", o.Dropped(), o.Offset())
			}
			if want := "read to " + strconv.Itoa(int(o.Offset())); o.Note() != want {
				t.Errorf("note %q, want %q", o.Note(), want)
			}
			if len(tt.r.asked) != tt.calls {
				t.Errorf("asked %q", tt.r.asked)
			}
			if n, err := o.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("after the end: %d, %v", n, err)
			}
			if !strings.HasPrefix(tt.r.asked[0], "/v1/allocations/u-0-1/output/stdout") {
				t.Error(tt.r.asked[0])
			}
		})
	}
}

func TestOutputOfNoAllocation(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse(w, api.Problem{Status: 404, Title: "x", Detail: "allocation a: not found"})
	}))
	if _, err := c.Output(t.Context(), OutputQuery{Alloc: "a", Stream: Stderr}); !IsNotFound(err) {
		t.Error(err)
	}
}

func TestOutputIsNeverRepeated(t *testing.T) {
	calls := 0
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		w.Header().Set("Muster-Output-Start", "0") // whatever was asked for
		w.Header().Set("Muster-Output-End", "6")
		w.Header().Set("Muster-Output-State", "complete")
		if calls == 1 {
			_, _ = fmt.Fprint(w, "abc")
			cut(t, w)
			return
		}
		_, _ = fmt.Fprint(w, "abcdef")
	}))
	o, err := c.Output(t.Context(), OutputQuery{Alloc: "a", Stream: Stdout, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(o); string(b) != "abcdef" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

func TestOutputThatIsClosedEnds(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	o, err := c.Output(t.Context(), OutputQuery{Alloc: "a", Stream: Stdout, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := o.Read(make([]byte, 1))
		done <- err
	}()
	_ = o.Close()
	if err := <-done; err == nil {
		t.Error("no error")
	}
}
