package initwire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"reflect"
	"strings"
	"testing"
)

func TestFileMessages(t *testing.T) {
	same := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v, %v", what, got, want, err)
		}
	}
	list := &FileList{Path: "a\xff", Recursive: true, Limit: 1 << 40, User: "u", NoFollow: true, NoHidden: true}
	got1, err := ParseFileList(list.Fields())
	same("list", got1, err, list)
	stat := &FileStat{Path: "/", Follow: true}
	got2, err := ParseFileStat(stat.Fields())
	same("stat", got2, err, stat)
	read := &FileRead{Path: "p", Offset: 1, Length: 2, User: "1:2"}
	got3, err := ParseFileRead(read.Fields())
	same("read", got3, err, read)
	write := &FileWrite{Path: "p", Mode: 0o4755, User: "u:g", Parents: true, ParentMode: 0o1777, Sized: true, Size: 1 << 50}
	got4, err := ParseFileWrite(write.Fields())
	same("write", got4, err, write)
	del := &FileDelete{Path: "p", Recursive: true, MissingOK: true, Contents: true}
	got5, err := ParseFileDelete(del.Fields())
	same("delete", got5, err, del)
	mk := &FileMake{Path: "p", Mode: 0o700, Parents: true, User: "1:2"}
	got6, err := ParseFileMake(mk.Fields())
	same("make", got6, err, mk)
	tarRead := &TarRead{Paths: []string{"a", "", "b"}, Follow: true}
	got7, err := ParseTarRead(tarRead.Fields())
	same("tar read", got7, err, tarRead)
	tarWrite := &TarWrite{Path: "p", User: "u", KeepOwners: true, Make: true}
	got8, err := ParseTarWrite(tarWrite.Fields())
	same("tar write", got8, err, tarWrite)
	entry := &FileEntry{
		Path: "a/b", Name: "b", Type: TypeLink, Size: 1 << 50, Unsized: true, Mode: 0o7777, ModTime: -5, UID: 1 << 31, GID: 7, User: "u", Group: "g",
		Target: "t", Problem: "p",
	}
	got9, err := ParseFileEntry(entry.Fields())
	same("entry", got9, err, entry)
	wrong := &FileError{Code: FileBusy, Path: "p", Message: "m"}
	got10, err := ParseFileError(wrong.Fields())
	same("error", got10, err, wrong)
	ports := &PortList{[]Listening{{Port: 1, IP: []byte{0, 0, 0, 0}}, {Port: 65535, IP: make([]byte, 16), UID: 1 << 31}}}
	got11, err := ParsePortList(ports.Fields())
	same("ports", got11, err, ports)
}

// TestBounds: whatever is in an entry, an error or a list, its frame is one that is read.
func TestFileBounds(t *testing.T) {
	huge := strings.Repeat("x", 1<<20)
	entry := &FileEntry{Path: huge, Name: huge, User: huge, Group: huge, Target: huge, Problem: huge}
	wrong := &FileError{Code: huge, Path: huge, Message: huge}
	ports := &PortList{}
	for range MaxListening {
		ports.Listening = append(ports.Listening, Listening{Port: 65535, IP: make([]byte, 16), UID: 1<<32 - 2})
	}
	for what, fields := range map[string][]byte{"entry": entry.Fields(), "error": wrong.Fields(), "ports": ports.Fields()} {
		if len(fields) >= MaxFrame {
			t.Errorf("%s: %d bytes", what, len(fields))
		}
	}
	// A port that is none, or a list without end, is not passed on.
	ports.Listening = append(ports.Listening, ports.Listening...)
	ports.Listening[0].Port = 1 << 16
	if got, err := ParsePortList(ports.Fields()); err != nil || len(got.Listening) != MaxListening || got.Listening[0].Port != 65535 {
		t.Errorf("%d ports, %v", len(got.Listening), err)
	}
}

// FuzzParseFiles: whatever comes, parsing ends, and what was understood is understood again.
func FuzzParseFiles(f *testing.F) {
	f.Add((&FileWrite{Path: "p", Mode: 1, User: "u", Parents: true, Sized: true, Size: 5}).Fields())
	f.Add((&FileEntry{Path: "p", Name: "n", Type: 'd', Size: 1, User: "u"}).Fields())
	f.Add((&TarRead{Paths: []string{"a", "b"}, Follow: true}).Fields())
	f.Add((&PortList{[]Listening{{Port: 1, IP: []byte{1, 2, 3, 4}}}}).Fields())
	f.Add([]byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		again(t, b, ParseFileList)
		again(t, b, ParseFileStat)
		again(t, b, ParseFileRead)
		again(t, b, ParseFileWrite)
		again(t, b, ParseFileDelete)
		again(t, b, ParseFileMake)
		again(t, b, ParseTarRead)
		again(t, b, ParseTarWrite)
		again(t, b, ParseFileEntry)
		again(t, b, ParseFileError)
		again(t, b, ParsePortList)
	})
}

func again[T any, M interface {
	*T
	Fields() []byte
}](t *testing.T, b []byte, parse func([]byte) (M, error)) {
	t.Helper()
	m, err := parse(b)
	if err != nil {
		return
	}
	got, err := parse(m.Fields())
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("%+v became %+v, %v", m, got, err)
	}
}

// answering is an init that says what it is told to, whatever it is asked.
func answering(t *testing.T, frames ...[]byte) net.Conn {
	t.Helper()
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = server.Close() }()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		for _, f := range frames {
			if _, err := server.Write(f); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = client.Close()
		<-done
	})
	return client
}

func frame(kind Kind, body []byte) []byte {
	var b bytes.Buffer
	_ = WriteFrame(&b, kind, body)
	return b.Bytes()
}

// TestLyingInit: what it must not say is an error, and never an endless wait, a lie passed on, or a panic.
func TestLyingInit(t *testing.T) {
	ctx := context.Background()
	entry := frame(KindFileEntry, (&FileEntry{Path: "p", Name: "p", Type: TypeFile, Size: 5}).Fields())
	data := func(n int) []byte { return frame(KindData, make([]byte, n)) }
	done := frame(KindDone, nil)
	for what, frames := range map[string][][]byte{
		"nothing": {}, "half a frame": {entry[:3]}, "another kind": {frame(KindState, nil)}, "damaged": {frame(KindFileEntry, []byte{1, 200})},
		"too few": {entry, data(4), done}, "too many": {entry, data(3), data(3), done}, "an empty frame": {entry, data(0), data(5), done},
		"a huge frame": {entry, data(MaxBytes + 1)}, "no end": {entry, data(5)}, "an entry again": {entry, entry}, "a monster": {{255, 255, 255, 255, 1}},
		"refusal": {frame(KindRefused, TextFields("no"))}, "wrong": {entry, data(2), frame(KindFileError, (&FileError{Code: FileBusy}).Fields())},
	} {
		_, r, err := ReadFile(ctx, answering(t, frames...), FileRead{Path: "p"})
		if err == nil {
			var b []byte
			b, err = io.ReadAll(r)
			if len(b) > 5 {
				t.Errorf("%s: %d bytes", what, len(b))
			}
			_ = r.Close()
		}
		if err == nil {
			t.Errorf("read, %s: no error", what)
		}
		if err := DeleteFile(ctx, answering(t, frames...), FileDelete{Path: "p"}); err == nil {
			t.Errorf("delete, %s: no error", what)
		}
		if _, err := StatFile(ctx, answering(t, frames...), FileStat{Path: "p"}); err == nil {
			t.Errorf("stat, %s: no error", what)
		}
		if err := WriteFile(ctx, answering(t, frames...), FileWrite{Path: "p"}, strings.NewReader("x")); err == nil {
			t.Errorf("write, %s: no error", what)
		}
		if _, err := ListPorts(ctx, answering(t, frames...)); err == nil {
			t.Errorf("ports, %s: no error", what)
		}
		if err := ConnectPort(ctx, answering(t, frames...), 1); err == nil {
			t.Errorf("connect, %s: no error", what)
		}
	}
	_, r, err := ReadFile(ctx, answering(t, entry, data(2), data(3), done), FileRead{Path: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) != 5 {
		t.Errorf("the truth: %d bytes, %v", len(b), err)
	}
	_ = r.Close()
}

// TestUploadEnds: when an init answers before everything is sent, its answer is what comes back, though it takes no more.
func TestUploadEnds(t *testing.T) {
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	go func() {
		_, _, _ = ReadFrame(server, MaxFrame)
		_, _, _ = ReadFrame(server, MaxFrame)
		_ = WriteFrame(server, KindFileError, (&FileError{Code: FileNoSpace, Path: "p", Message: "no space is left"}).Fields())
		_ = server.Close()
	}()
	endless := readerFunc(func(p []byte) (int, error) { return len(p), nil })
	var wrong *FileError
	if err := WriteFile(context.Background(), client, FileWrite{Path: "p"}, endless); !errors.As(err, &wrong) || wrong.Code != FileNoSpace {
		t.Errorf("%v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestCallEnds: an operation ends with its context, and says why.
func TestCallEnds(t *testing.T) {
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(context.Background())
	client, server := net.Pipe()
	defer func() { _ = server.Close() }()
	go func() {
		_, _, _ = ReadFrame(server, MaxFrame)
		cancel(why)
	}()
	if _, err := StatFile(ctx, client, FileStat{Path: "p"}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if err := ListFiles(ctx, client, FileList{Path: strings.Repeat("x", MaxFrame)}, nil); err == nil {
		t.Error("a request longer than a frame was sent")
	}
}
