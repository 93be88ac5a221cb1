package raftlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log that has lost its segments, or what tells of them, is damaged. A server
// that began it anew would wait for a leader for ever, or go on from an old state.
func TestLostSegmentsAreRefused(t *testing.T) {
	for _, snapshots := range []bool{false, true} {
		for name, spoil := range map[string]func(t *testing.T, dir, segment string){
			"deleted": func(t *testing.T, _, segment string) {
				if err := os.Remove(segment); err != nil {
					t.Fatal(err)
				}
			},
			"emptied": func(t *testing.T, _, segment string) {
				if err := os.Truncate(segment, 0); err != nil {
					t.Fatal(err)
				}
			},
			"cut off": func(t *testing.T, _, segment string) {
				b, err := os.ReadFile(segment)
				if err == nil {
					err = os.Truncate(segment, int64(len(bytes.TrimRight(b, "\x00"))/2))
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			"unknown": func(t *testing.T, dir, _ string) {
				if err := os.Remove(filepath.Join(dir, "wal-meta.db")); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name+map[bool]string{true: ", with a snapshot"}[snapshots], func(t *testing.T) {
				c := small(t.TempDir(), &recorder{})
				r := start(t, c)
				for i := range 10 {
					r.mustPropose(t, nameOf(i))
				}
				if snapshots {
					if err := r.Snapshot(); err != nil {
						t.Fatal(err)
					}
				}
				r.mustStop(t)
				dir := filepath.Join(c.Dir, logName)
				segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
				if err != nil || len(segments) != 1 {
					t.Fatalf("%v %v", segments, err)
				}
				spoil(t, dir, segments[0])
				c.Machine = &recorder{}
				l, err := Open(c)
				if err == nil {
					_ = l.Close()
				}
				if !errors.Is(err, ErrDamaged) || strings.Count(err.Error(), "damaged") != 1 {
					t.Errorf("opened with: %v", err)
				}
			})
		}
	}
}

func nameOf(i int) string { return "entry " + string(rune('a'+i)) }
