package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/initbox"
)

// TestFlood: a sandbox whose init does with its place for output what an honest one never does is ended by who measures it.
func TestFlood(t *testing.T) {
	r := newRuntime(t, "", testParent(t), 0)
	for name, deed := range map[string]func(out string) error{
		"a directory": func(out string) error { return os.Mkdir(filepath.Join(out, "more"), 0o700) },
		"a large file": func(out string) error {
			f, err := os.Create(filepath.Join(out, "stdout.0"))
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			return allocate(f, 5<<30)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := makeDirs(dir); err != nil {
				t.Fatal(err)
			}
			c := attempt(dir, "flood-0-1", busybox(t, 0), "exec sleep 1000")
			c.OutputLimit = 1 << 20
			s, err := r.Start(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = r.Remove(context.Background(), dir) })
			s.Usage()
			if all, err := initbox.Members(dir); err != nil || len(all) < 2 || all[0].Role != initbox.RoleInit {
				t.Errorf("an honest one was ended: %v, %v", all, err)
			}
			if err := deed(filepath.Join(dir, initbox.Out)); err != nil {
				t.Skip("no room for the test: ", err)
			}
			s.Usage()
			<-s.Done()
			f := s.Result().Failure
			if f == nil || f.Class != muster.FailureUser || f.Reason != muster.ReasonSandboxDied || !strings.Contains(f.Message, "directory") {
				t.Errorf("failure %v", f)
			}
			t.Log(f)
			if err := r.Remove(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
}
