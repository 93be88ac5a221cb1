package link

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/blob"
	"github.com/musterhq/muster/internal/control/link/linktest"
	"github.com/musterhq/muster/internal/state"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// S-H6: a node that claims a million cores and every isolation is sent everybody's jobs, with their secrets.
func TestNodeIsNoMoreThanItWasBoughtAs(t *testing.T) {
	for _, tt := range []struct {
		program   string // of its pool
		isolation muster.Isolation
		version   string // of what makes its containers
		want      string // "isolation containers", as they are believed
	}{
		{"", muster.IsolationUserNamespace, "crun 1.8.1", "container-userns crun 1.8.1"},
		{"", "runsc", "runsc release-1", " "},
		{"", "runsc", "crun 1.8.1", " crun 1.8.1"},
		{"runc", "runsc", "runsc 1", " "},
		{"runc", muster.IsolationContainer, "crun 1.8.1", " "},
		{"runsc", "runsc", "runsc release-1", "runsc runsc release-1"},
		{"runsc", "kata", "runsc release-1", " runsc release-1"},
		{"/opt/kata", "kata-runtime", "kata-runtime 3", "kata-runtime kata-runtime 3"},
		{"none", muster.IsolationContainer, "crun 1.8.1", " "},
	} {
		inBubble(t, func(r *rig) {
			r.config.OCIRuntime = func(muster.PoolName) string { return tt.program }
			r.boot("n1", 8, func(c *linktest.Config) {
				c.LieHello = func(h *wire.Hello) {
					h.Capacity = muster.Resources{CPU: 1e9, Memory: 1 << 60, Disk: 1 << 60}
					h.Attributes = map[string]string{"os": "linux", "pool": "other", "zone": "other", "offering": "other", "provider": "other", "market": "other",
						muster.AttributeIsolation: string(tt.isolation), muster.AttributeContainers: tt.version, muster.MetaPrefix + "team": "mine"}
				}
			})
			r.start()
			r.until("serving", time.Minute, serving("n1"))
			n := r.log.Latest().Node("n1")
			if want := (muster.Resources{CPU: 8000, Memory: 64 * muster.GiB, Disk: mostDisk}); n.Capacity != want {
				t.Errorf("capacity %v, want %v", n.Capacity, want)
			}
			if got := n.Attributes[muster.AttributeIsolation] + " " + n.Attributes[muster.AttributeContainers]; got != tt.want {
				t.Errorf("oci_runtime %q, the node says %q by %q: believed %q, want %q", tt.program, tt.isolation, tt.version, got, tt.want)
			}
			for _, name := range []string{"pool", "zone", "offering", "provider", "market", muster.MetaPrefix + "team"} {
				if v := n.Attributes[name]; v == "other" || v == "mine" {
					t.Errorf("attribute %s is %s", name, v)
				}
			}
			if n.Attributes["os"] != "linux" {
				t.Error("what it may say is lost")
			}
		})
	}
}

// S-M6: uploads are kept by digest for everybody; a node gets those of its own allocations.
func TestNodeGetsItsOwnInputsOnly(t *testing.T) {
	inBubble(t, func(r *rig) {
		digest := func(content string) string {
			sum := sha256.Sum256([]byte(content))
			digest := "sha256:" + hex.EncodeToString(sum[:])
			if _, err := r.blobs.Put(t.Context(), blob.UploadKey(digest), strings.NewReader(content)); err != nil {
				t.Fatal(err)
			}
			return digest
		}
		own, other := digest("own"), digest("tenant A's private data")
		n := r.boot("n1", 8, func(c *linktest.Config) {
			c.LieReport = func(r *wire.Report) { r.Needs = append(r.Needs, other) }
		})
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.submit("j", spec("true", func(s *api.JobSpec) { s.Inputs = []api.InputSpec{{Path: "in", Digest: own}} }))
		r.place("j", "n1")
		r.until("done", time.Minute, allocIs("uj-0-1", muster.AllocEnded))
		if !n.HasInput(own) || n.HasInput(other) {
			t.Errorf("its own %v, another's %v", n.HasInput(own), n.HasInput(other))
		}
	})
}

// A node gets the blobs of the loaded images that its allocations use, and of no others; the agent
// is told of an image by its digest.
func TestNodeGetsItsOwnImagesOnly(t *testing.T) {
	inBubble(t, func(r *rig) {
		load := func(name, content string) string {
			sum := sha256.Sum256([]byte(content))
			digest := "sha256:" + hex.EncodeToString(sum[:])
			if _, err := r.blobs.Put(t.Context(), blob.UploadKey(digest), strings.NewReader(content)); err != nil {
				t.Fatal(err)
			}
			r.must(&state.ImageLoaded{Image: state.LoadedImage{Name: name, Digest: digest, Blobs: []state.LoadedBlob{{Digest: digest, Size: int64(len(content))}}}})
			return digest
		}
		old := load("docker.io/library/web:1", "the version before")
		own, other := load("docker.io/library/web:1", "own"), load("docker.io/library/other:1", "another's")
		n := r.boot("n1", 8, func(c *linktest.Config) {
			c.LieReport = func(r *wire.Report) { r.Needs = append(r.Needs, own, old, other) }
		})
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.submit("j", spec("sleep 1m ; true", func(s *api.JobSpec) { s.Image = "web:1" }))
		r.place("j", "n1")
		r.until("running", time.Minute, allocIs("uj-0-1", muster.AllocRunning))
		time.Sleep(10 * time.Second)
		if !n.HasInput(own) || !n.HasInput(old) || n.HasInput(other) {
			t.Errorf("its own %v, the version before %v, another's %v", n.HasInput(own), n.HasInput(old), n.HasInput(other))
		}
		row := r.log.Latest().Alloc("uj-0-1")
		if row.Run.Spec.Image != "web:1" {
			t.Errorf("the job names %q", row.Run.Spec.Image)
		}
	})
}

// lines counts what is logged.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// S-H5: what a node reports is bounded, in bytes, in allocations, in what it asks for and in lines of the log.
func TestReportsAreBounded(t *testing.T) {
	lasts, most := 20*time.Second, 100
	if testing.Short() {
		lasts, most = lasts/2, most*3/5
	}
	for name, tt := range map[string]struct {
		lie     func(r *wire.Report)
		refused string // what its health says then; empty: it goes on
	}{
		"digests that nobody has": {func(r *wire.Report) {
			for i := range 20_000 {
				r.Needs = append(r.Needs, fmt.Sprintf("sha256:%064x", i))
			}
		}, ""},
		"allocations that nobody placed": {func(r *wire.Report) {
			for i := range maxUnknown + 1 {
				r.Allocs = append(r.Allocs, wire.AllocReport{ID: muster.AllocID(fmt.Sprintf("u%d-0-1", i)), Status: muster.AllocRunning})
			}
		}, "never placed there"},
		"some allocations that nobody placed": {func(r *wire.Report) {
			for i := range 500 {
				r.Allocs = append(r.Allocs, wire.AllocReport{ID: muster.AllocID(fmt.Sprintf("u%d-0-1", i)), Status: muster.AllocRunning})
			}
		}, ""},
		"a report without end": {func(r *wire.Report) {
			r.Needs = append(r.Needs, strings.Repeat("x", reportBase))
		}, "longer than"},
	} {
		t.Run(name, func(t *testing.T) {
			lying := func(c *linktest.Config) { c.LieReport = tt.lie }
			if tt.refused != "" { // each contact has one report
				report := wire.Report{Run: "n1-boot1", Seq: 1, Whole: true}
				tt.lie(&report)
				raw, err := json.Marshal(report)
				if err != nil {
					t.Fatal(err)
				}
				lying = func(c *linktest.Config) { c.RawReport = raw }
			}
			inBubble(t, func(r *rig) {
				said := &lines{}
				r.config.Logger = slog.New(slog.NewTextHandler(said, nil))
				r.boot("n1", 8, lying)
				r.start()
				r.until("serving", time.Minute, serving("n1"))
				time.Sleep(lasts)
				if r.link.Stats().Inputs > 0 {
					t.Error("something was pushed")
				}
				if tt.refused != "" && said.count(tt.refused) == 0 {
					t.Errorf("the log does not say %q:\n%s", tt.refused, said.buf.String())
				}
				if n := said.count("\n"); n > most {
					t.Errorf("%d lines of log in %s", n, lasts)
				}
				health := r.log.Latest().Node("n1").Health
				if (health == muster.NodeGood) != (tt.refused == "") {
					t.Errorf("it is %s", health)
				}
			})
		})
	}
}

// A node that sends reports without an end is read no faster than it may be, however large they are, and stays in contact.
func TestFloodOfReportsIsPaced(t *testing.T) {
	lasts := 10 * time.Second
	if testing.Short() {
		lasts /= 4
	}
	for name, size := range map[string]int{"small": 0, "large": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				said := &lines{}
				r.config.Logger = slog.New(slog.NewTextHandler(said, nil))
				var sent atomic.Int64
				padding := []string{strings.Repeat("x", size)}
				burst := time.Duration(reportBurst * reportBase * int64(time.Second) / reportRate)
				most := int64((lasts+burst)/(reportTime+time.Duration(int64(size)*int64(time.Second)/reportRate))) + 10
				r.boot("n1", 8, func(c *linktest.Config) {
					c.Flood = true
					c.LieReport = func(r *wire.Report) {
						r.Needs = padding
						if sent.Add(1) == 4*most {
							t.Errorf("%d reports were read, more than %d", 4*most, most)
						}
						if sent.Load() >= 4*most {
							select {} // else the flood never lets the bubble's time pass
						}
					}
				})
				r.boot("n2", 8)
				r.start()
				r.until("serving", time.Minute, serving("n1"))
				before := sent.Load()
				time.Sleep(lasts)
				if n := sent.Load() - before; n > most || n < most/2 {
					t.Errorf("%d reports in %s, want about %d", n, lasts, most)
				}
				if h := r.log.Latest().Node("n1").Health; h != muster.NodeGood {
					t.Errorf("it is %s", h)
				}
				if n := said.count("\n"); n > 100 {
					t.Errorf("%d lines of log", n)
				}
			})
		})
	}
}

// TestReportOfManyOutputs: a job may have outputs with names of nearly a MiB, which a report repeats: its node stays in contact.
func TestReportOfManyOutputs(t *testing.T) {
	inBubble(t, func(r *rig) {
		path := func(i int) string { return strings.Repeat("<", 900) + strconv.Itoa(i) }
		r.boot("n1", 4, func(c *linktest.Config) {
			c.LieReport = func(rep *wire.Report) {
				for i := range rep.Allocs {
					if a := &rep.Allocs[i]; a.Status == muster.AllocEnded {
						a.Outcome, a.Failure, a.Outputs = muster.OutcomeSucceeded, nil, nil
						for n := range api.MaxListLen {
							a.Outputs = append(a.Outputs, wire.OutputReport{Path: path(n), Size: 1 << 40})
						}
					}
				}
			}
		})
		r.start()
		r.until("serving", time.Minute, serving("n1"))
		r.submit("j", spec("true", func(s *api.JobSpec) {
			for n := range api.MaxListLen {
				s.Outputs = append(s.Outputs, api.OutputSpec{Path: path(n)})
			}
		}))
		id := r.place("j", "n1")[0]
		r.until("ended", time.Minute, allocIs(id, muster.AllocEnded))
		if health := r.log.Latest().Node("n1").Health; health != muster.NodeGood {
			t.Errorf("it is %s", health)
		}
	})
}

// TestOutputWithoutEnd: a node that sends a declared output for ever must not fill the server's disk. More than it has reported is its own failure;
// only outputs that it says are too large are the job's.
func TestOutputWithoutEnd(t *testing.T) {
	const most = 1 << 20
	for name, c := range map[string]struct {
		size  int64
		class muster.FailureClass
		words string
	}{
		"small by its word":     {10, muster.FailureNode, "more than the 10B that it reported"},
		"negative by its word":  {-1, muster.FailureNode, "more than the -1B that it reported"},
		"too large by its word": {most + 1, muster.FailureUser, "blob.quota"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(r *rig) {
				r.config.OutputMost = func() int64 { return most }
				r.boot("n1", 4, func(cfg *linktest.Config) {
					cfg.LieReport = func(rep *wire.Report) {
						for i := range rep.Allocs {
							if a := &rep.Allocs[i]; a.Status == muster.AllocEnded {
								a.Outcome, a.Failure, a.Outputs = muster.OutcomeSucceeded, nil, []wire.OutputReport{{Path: "a", Size: c.size}}
							}
						}
					}
					cfg.LieInside = func(w http.ResponseWriter, req *http.Request) {
						zeros := make([]byte, 64<<10)
						for strings.Contains(req.URL.Path, "/outputs/") {
							if _, err := w.Write(zeros); err != nil {
								return
							}
						}
					}
				})
				r.start()
				r.until("serving", time.Minute, serving("n1"))
				r.submit("j", spec("true", func(s *api.JobSpec) { s.Outputs = []api.OutputSpec{{Path: "a"}} }))
				id := r.place("j", "n1")[0]
				r.until("ended", time.Minute, allocIs(id, muster.AllocEnded))
				a := r.log.Latest().Alloc(id)
				if a.Outcome != muster.OutcomeFailed || a.Failure == nil || a.Failure.Class != c.class || !strings.Contains(a.Failure.Message, c.words) {
					t.Errorf("%s %+v", a.Outcome, a.Failure)
				}
				if a.Output.BlobBytes != 0 {
					t.Errorf("%d bytes are stored", a.Output.BlobBytes)
				}
			})
		})
	}
}
