package images

import (
	"bufio"
	"context"
	"fmt"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/agent/images/layertest"
)

const (
	childDir  = "MUSTER_IMAGES_TEST_DIR"
	childRefs = "MUSTER_IMAGES_TEST_REFS"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		pullForEver(dir, strings.Fields(os.Getenv(childRefs)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// pullForEver is what a killed process was doing.
func pullForEver(dir string, refs []string) {
	s, err := New(Config{Dir: dir, Platform: testPlatform, Limit: 3 << 20, Grant: insecure})
	if err != nil {
		fmt.Println("child:", err)
		return
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		im, err := s.Open(context.Background(), refs[i%len(refs)], wire.Puller{}, nil)
		if err != nil {
			fmt.Println("child:", err)
			return
		}
		im.Release()
		if i%7 == 6 {
			if _, err := s.Prune(context.Background(), true); err != nil {
				fmt.Println("child:", err)
				return
			}
		}
	}
}

// A process killed at any time leaves a store that works, with whole layers only.
func TestKilled(t *testing.T) {
	layertest.NeedRoot(t)
	r := newReg(t)
	var refs []string
	for i := range 4 {
		name := fmt.Sprint("i", i)
		refs = append(refs, r.push(t, name, "1", sized(t, name, 1<<20)))
	}
	dir := t.TempDir() + "/images"
	for range 15 {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childDir+"="+dir, childRefs+"="+strings.Join(refs, " "))
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "ready" {
			t.Errorf("child: %q", lines.Text())
		}
		// At any time of its work: this is how long it works, nothing is waited for.
		time.AfterFunc(rand.N(150*time.Millisecond), func() { _ = cmd.Process.Kill() })
		for lines.Scan() {
			t.Error(lines.Text())
		}
		_ = cmd.Wait()
		s := newStore(t, func(c *Config) { c.Dir = dir; c.Limit = 3 << 20 })
		clean(t, s)
		if bad, err := s.Verify(context.Background(), ""); err != nil || len(bad) > 0 {
			t.Errorf("after a kill: %v %v", bad, err)
		}
		if a, b := len(layertest.Names(t, s.LayersDir())), len(layertest.Names(t, s.path(recordsDir))); a != b {
			t.Errorf("%d layers, %d records", a, b)
		}
		im := open(t, s, refs[0])
		if got := layertest.Look(t, im.Layers[0]+"/i0"); got != "file 644 0:0 i0" {
			t.Errorf("layer: %s", got)
		}
		im.Release()
		unused(t, s)
	}
}
