package agent

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/journal"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

func withOutputs(al wire.DesiredAlloc, outputs ...wire.Output) wire.DesiredAlloc {
	al.Spec.Outputs = outputs
	return al
}

// untar reads a collected output: name → content, "-> target" of a link, "/" of a directory.
func (r *rig) untar(id muster.AllocID, n int) (map[string]string, []string) {
	r.t.Helper()
	body, err := r.client.CollectedOutput(r.t.Context(), id, n)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = body.Close() }()
	got, order := map[string]string{}, []string{}
	for tr := tar.NewReader(body); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return got, order
		}
		if err != nil {
			r.t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			r.t.Fatal(err)
		}
		order = append(order, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			got[h.Name] = "/"
		case tar.TypeSymlink:
			got[h.Name] = "-> " + h.Linkname
		default:
			got[h.Name] = string(b)
			if h.Uid != 0 || h.Uname != "" {
				r.t.Errorf("%s tells who owned it", h.Name)
			}
		}
	}
}

func TestOutputsAreCollected(t *testing.T) {
	rt := newPlayed()
	r := newRig(t, rt, "")
	r.must(set(withOutputs(run("u-0-1", "make", "one.txt", "dir/b", "dir/a", "dir/sub/c"),
		wire.Output{Path: "one.txt"}, wire.Output{Path: "none", Optional: true}, wire.Output{Path: "./dir/"})))
	got := r.until("u-0-1", muster.AllocEnded)
	if got.Outcome != muster.OutcomeSucceeded || len(got.Outputs) != 2 || got.Outputs[0].Path != "one.txt" || got.Outputs[1].Path != "./dir/" || got.Outputs[0].Size == 0 {
		t.Fatalf("%+v", got)
	}
	if files, _ := r.untar("u-0-1", 0); !reflect.DeepEqual(files, map[string]string{"one.txt": "made one.txt"}) {
		t.Errorf("%v", files)
	}
	files, order := r.untar("u-0-1", 1)
	if !reflect.DeepEqual(files, map[string]string{"dir/": "/", "dir/a": "made a", "dir/b": "made b", "dir/sub/": "/", "dir/sub/c": "made c"}) {
		t.Errorf("%v", files)
	}
	if !reflect.DeepEqual(order, []string{"dir/", "dir/a", "dir/b", "dir/sub/", "dir/sub/c"}) {
		t.Errorf("%v", order)
	}
	for _, n := range []int{2, -1} {
		if _, err := r.client.CollectedOutput(t.Context(), "u-0-1", n); muster.KindOf(err) != muster.FaultNotFound {
			t.Errorf("output %d: %v", n, err)
		}
	}
	r.stop()
	r = newRig(t, rt, r.dir)
	if files, _ := r.untar("u-0-1", 0); len(files) != 1 {
		t.Errorf("after a restart: %v", files)
	}
}

func TestOutputThatIsMissing(t *testing.T) {
	r := newRig(t, newPlayed(), "")
	r.must(set(
		withOutputs(run("u-0-1", "make", "a"), wire.Output{Path: "a"}, wire.Output{Path: "result.csv"}),
		withOutputs(run("u-1-1", "exit", "2"), wire.Output{Path: "result.csv"}),
	))
	if got := r.until("u-0-1", muster.AllocEnded); got.Outcome != muster.OutcomeFailed || got.Failure.Class != muster.FailureUser ||
		got.Failure.Reason != muster.ReasonOutputMissing || !strings.Contains(got.Failure.Message, "result.csv") || got.ExitCode != 0 {
		t.Errorf("%+v", got)
	}
	// Whose command failed is not asked for outputs.
	if got := r.until("u-1-1", muster.AllocEnded); got.Failure.Reason != muster.ReasonExit {
		t.Errorf("%+v", got)
	}
}

func TestOutputsCannotEscape(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	rt := newPlayed()
	rt.onStart = func(c contract.SandboxConfig) {
		for link, target := range map[string]string{
			"dir/abs": filepath.Join(outside, "secret"), "dir/up": "../../../../../../etc", "dir/in": "file", "dir/self": ".",
			"alias": "dir", "out": outside, "loop": "loop",
		} {
			_ = os.MkdirAll(filepath.Join(c.Work, "dir"), 0o755)
			if err := os.Symlink(target, filepath.Join(c.Work, link)); err != nil {
				t.Error(err)
			}
		}
		if err := syscall.Mkfifo(filepath.Join(c.Work, "dir", "fifo"), 0o600); err != nil {
			t.Error(err)
		}
	}
	r := newRig(t, rt, "")
	r.must(set(withOutputs(run("u-0-1", "make", "dir/file"), wire.Output{Path: "dir"}, wire.Output{Path: "alias"})))
	r.until("u-0-1", muster.AllocEnded)
	links := map[string]string{"abs": "-> " + filepath.Join(outside, "secret"), "up": "-> ../../../../../../etc", "in": "-> file", "self": "-> .", "file": "made file"}
	for n, name := range []string{"dir", "alias"} {
		want := map[string]string{name + "/": "/"}
		for k, v := range links {
			want[name+"/"+k] = v
		}
		if files, _ := r.untar("u-0-1", n); !reflect.DeepEqual(files, want) {
			t.Errorf("%s\n got %v\nwant %v", name, files, want)
		}
	}
	for i, path := range []string{"out", "out/secret", "dir/abs", "dir/up/passwd", "loop"} {
		id := muster.NewAllocID("v", i, 1)
		r.must(set(withOutputs(run(id, "make", "dir/file"), wire.Output{Path: path, Optional: true})))
		if got := r.until(id, muster.AllocEnded); got.Failure == nil || got.Failure.Reason != muster.ReasonOutputMissing || got.Failure.Class != muster.FailureUser {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

func TestTreeWithoutPermissionsIsRemoved(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Log("root needs no permissions: only the plain way is tried")
	}
	top := filepath.Join(t.TempDir(), "top")
	deep := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(deep, "f"), nil, 0o400); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{deep, filepath.Dir(deep)} {
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
	}
	if err := journal.RemoveTree(top); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(top); !errors.Is(err, os.ErrNotExist) {
		t.Error("still there")
	}
}
