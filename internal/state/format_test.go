package state

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"

	"github.com/musterhq/muster"
)

// wire lists everything that can be written, one line each: the format from which it may be written, the path of
// keys that leads to it, its type on the wire, and its name in Go.
type wire struct {
	t     *testing.T
	lines []string
	// seen are the keys of since that were met.
	seen map[string]bool
	open []reflect.Type
}

func listWire(t *testing.T) *wire {
	w := &wire{t: t, seen: map[string]bool{}}
	for k := kind(1); int(k) < len(blanks); k++ {
		typ := reflect.TypeOf(blank(k))
		w.whole(fmt.Sprintf("fact %d", k), typ, w.since(typ.Elem().String(), FormatFirst))
	}
	for table := range rowTable(255) {
		if v := newRow(table); v != nil {
			w.whole(fmt.Sprintf("row %d", table), reflect.TypeOf(v), w.since(fmt.Sprintf("row %d", table), FormatFirst))
		}
	}
	return w
}

// whole lists a fact or a row with all that is in it.
func (w *wire) whole(path string, typ reflect.Type, of Format) {
	w.lines = append(w.lines, fmt.Sprintf("%d %s %s %s", of, path, onWire(typ), typ.Elem()))
	w.value(path, typ, of)
}

// since is the format of a name, and at least that of what it is part of.
func (w *wire) since(name string, of Format) Format {
	if since[name] != 0 {
		w.seen[name] = true
	}
	return max(since[name], of)
}

func (w *wire) value(path string, typ reflect.Type, of Format) {
	switch typ.Kind() {
	case reflect.Pointer:
		w.value(path, typ.Elem(), of)
	case reflect.Slice, reflect.Array:
		w.value(path+"/[]", typ.Elem(), of)
	case reflect.Map:
		w.value(path+"/{}", typ.Elem(), of)
	case reflect.Struct:
		if slices.Contains(w.open, typ) {
			w.lines = append(w.lines, fmt.Sprintf("%d %s again: %s", of, path, typ))
			return
		}
		w.open = append(w.open, typ)
		of = w.since(typ.String(), of)
		for i := range typ.NumField() {
			w.field(path, typ, typ.Field(i), of)
		}
		w.open = w.open[:len(w.open)-1]
	}
}

func (w *wire) field(path string, typ reflect.Type, f reflect.StructField, of Format) {
	if _, cborTag := f.Tag.Lookup("cbor"); f.Anonymous && f.Tag.Get("json") == "" && !cborTag {
		w.value(path, f.Type, of)
		return
	}
	key, optional := wireKey(f)
	if key == "" {
		return
	}
	name := typ.String() + "." + f.Name
	at := w.since(name, of)
	if at > of && !optional {
		w.t.Errorf("%s is of format %d and what it is part of is of format %d: it needs omitempty or omitzero", name, at, of)
	}
	path += "/" + key
	w.lines = append(w.lines, fmt.Sprintf("%d %s %s %s", at, path, onWire(f.Type), name))
	w.value(path, f.Type, at)
}

// onWire is the kind of a type, by which renamed Go types are the same.
func onWire(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return onWire(t.Elem())
	case reflect.Slice, reflect.Array:
		return "[]" + onWire(t.Elem())
	case reflect.Map:
		return "map[" + onWire(t.Key()) + "]" + onWire(t.Elem())
	}
	return t.Kind().String()
}

// TestEveryFieldHasAFormat: what may be written in a format is never changed once the format has a data directory that
// later versions must open (internal/server/testdata). A new field or kind needs a newer format.
func TestEveryFieldHasAFormat(t *testing.T) {
	w := listWire(t)
	for name, format := range since {
		if !w.seen[name] {
			t.Errorf("since has %s, which is nowhere in facts and rows", name)
		}
		if format <= FormatFirst || format > FormatNewest {
			t.Errorf("since has %s at format %d; the newest is %d", name, format, FormatNewest)
		}
	}
	path := filepath.Join("testdata", "formats.golden")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	closed := FormatNewest
	if _, err := os.Stat(filepath.Join("..", "server", "testdata", fmt.Sprintf("format-%d.tgz", FormatNewest))); err != nil {
		closed--
	}
	rewrite := *update
	for _, l := range without(w.lines, golden) {
		if formatOf(t, l) <= closed {
			rewrite = false
			t.Errorf("new in a format that is closed: %s\n\tadd it to since in format.go with format %d", l, closed+1)
		}
	}
	for _, l := range without(golden, w.lines) {
		if formatOf(t, l) <= closed {
			rewrite = false
			t.Errorf("gone from a format that is closed, so that its data directories cannot be read: %s", l)
		}
	}
	if rewrite {
		if err := os.WriteFile(path, []byte(strings.Join(w.lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !slices.Equal(w.lines, golden) {
		t.Errorf("%s differs from facts and rows; if nothing else is reported, rewrite it with -update", path)
	}
}

// without are the lines of a that b lacks. Names in Go are not compared: they may change.
func without(a, b []string) (out []string) {
	has := map[string]bool{}
	for _, l := range b {
		has[l[:strings.LastIndexByte(l, ' ')]] = true
	}
	for _, l := range a {
		if !has[l[:strings.LastIndexByte(l, ' ')]] {
			out = append(out, l)
		}
	}
	return out
}

func formatOf(t *testing.T, line string) (f Format) {
	if _, err := fmt.Sscanf(line, "%d ", &f); err != nil {
		t.Fatalf("%q begins with no format: %v", line, err)
	}
	return f
}

func TestFactAboveTheGateIsNotWritten(t *testing.T) {
	l := newLog(t)
	above := []Fact{
		&NodeGone{ID: "n1", UnlessHeld: true},
		&EnvironmentSet{Key: muster.EnvironmentKey("default", "e"), UID: "ue", Spec: environment("e"), Rollout: true},
	}
	for _, f := range append(above, &NodeGone{ID: "n1"}) {
		err := l.s.MayWrite(f)
		if is := f == above[0] || f == above[1]; is != (err != nil) {
			t.Errorf("%T at format 1: %v", f, err)
		}
		if err != nil && (!muster.IsKind(err, muster.FaultUnavailable) || !strings.Contains(err.Error(), "needs log format 2, and the log has format 1")) {
			t.Errorf("%T: %v", f, err)
		}
	}
	// An element deep in a list, and in a map.
	if n := needOf(&struct {
		L []map[string]*NodeGone `cbor:"1,keyasint"`
	}{[]map[string]*NodeGone{{"a": {UnlessHeld: true}}}}); n.format != 2 || n.what != "state.NodeGone.UnlessHeld" {
		t.Errorf("a field within a list of maps needs %+v", n)
	}
	l.must(&FormatRaised{Format: 2, By: "v2"})
	for _, f := range above {
		if err := l.s.MayWrite(f); err != nil {
			t.Errorf("%T at format 2: %v", f, err)
		}
	}
	l.must(&FormatRaised{Format: 1, By: "v1"})
	if m := l.s.Latest().Meta(); m.Format != 2 || m.FormatBy != "v2" {
		t.Errorf("the gate fell: %+v", m)
	}
}

// encoded is a fact as a newer version writes it: of any kind, with any fields.
func encoded(t *testing.T, s *State, k kind, fields map[int]any) []byte {
	t.Helper()
	body, err := s.codec.enc.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.codec.enc.Marshal(envelope{Kind: k, Version: factVersion, Body: cbor.RawMessage(body)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNewerFactIsNotRead(t *testing.T) {
	s, _ := New(16)
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"kind":         {encoded(t, s, kind(len(blanks)), map[int]any{}), "a newer version wrote it"},
		"field":        {encoded(t, s, kindOf(&NodeGone{}), map[int]any{1: "n1", 99: true}), "a newer version wrote it"},
		"nested field": {encoded(t, s, kindOf(&PoolsSet{}), map[int]any{1: []any{map[int]any{1: "p", 99: 1}}}), "a newer version wrote it"},
		"field of a spec": {encoded(t, s, kindOf(&JobSubmitted{}), map[int]any{3: map[string]any{"name": "a", "from_the_future": 1}}),
			"a newer version wrote it"},
		"format": {encoded(t, s, kindOf(&FormatRaised{}), map[int]any{1: FormatNewest + 1, 2: "v9.1"}),
			fmt.Sprintf("it has format %d, and this version reads up to format %d; run muster v9.1 or a newer version", FormatNewest+1, FormatNewest)},
	} {
		_, err := s.Decode(c.b)
		var unreadable *UnreadableError
		var newer *NewerError
		if !errors.As(err, &unreadable) || !errors.As(err, &newer) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.Decode(encoded(t, s, kindOf(&NodeGone{}), map[int]any{1: "n1"})); err != nil {
		t.Errorf("a fact that is known: %v", err)
	}
}

func TestNewerSnapshotIsNotRestored(t *testing.T) {
	l := newLog(t)
	l.must(&TermBegan{Term: 1, Cluster: "c1"})
	s := l.s
	write := func(rows ...any) *bytes.Buffer {
		var b bytes.Buffer
		for _, v := range rows {
			item, err := s.codec.enc.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(item)
		}
		return &b
	}
	raw := func(v any) cbor.RawMessage {
		b, err := s.codec.enc.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		b    *bytes.Buffer
		want string
	}{
		"format": {write(map[int]any{1: imageMagic, 2: FormatNewest + 1, 3: "v9.1", 4: "new in the header"}), "run muster v9.1 or a newer version"},
		"table":  {write(imageHeader{Magic: imageMagic, Format: 1}, row{Table: 200, Body: raw(map[int]any{})}), "a newer version wrote it"},
		"field":  {write(imageHeader{Magic: imageMagic, Format: 1}, row{Table: rowNode, Body: raw(map[int]any{1: "n1", 250: 1})}), "a newer version wrote it"},
	} {
		err := s.Restore(c.b)
		var newer *NewerError
		if !errors.As(err, &newer) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m := s.Latest().Meta(); m.Cluster != "c1" {
		t.Errorf("a refused snapshot changed the state: %+v", m)
	}
}

// TestSnapshotTellsItsFormat: the header has the gate's format, and more only where the rows need it.
func TestSnapshotTellsItsFormat(t *testing.T) {
	l := newLog(t)
	l.must(&TermBegan{Term: 1, Cluster: "c1"})
	header := func() (h imageHeader) {
		if err := l.s.codec.dec.NewDecoder(bytes.NewReader(image(t, l.s))).Decode(&h); err != nil {
			t.Fatal(err)
		}
		return h
	}
	if h := header(); h.Format != 1 {
		t.Errorf("a log without a gate: %+v", h)
	}
	l.must(&NodeAdopted{ID: "n1", Token: "t1", Pool: "p", Instance: "i1"})
	l.must(&NodeHealthChanged{ID: "n1", Health: muster.NodeUnready, Reason: "full", Incapable: true})
	if h := header(); h.Format != 2 {
		t.Errorf("with a row that has a field of format 2, in a log without a gate: %+v", h)
	}
	l.must(&FormatRaised{Format: 2, By: "v2"})
	if h := header(); h.Format != 2 || h.By != "v2" {
		t.Errorf("after FormatRaised: %+v", h)
	}
}
