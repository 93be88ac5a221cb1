package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/api"
)

// vetJob is `go vet` over the standard library of the Go that is in PATH.
type vetJob struct {
	packages  int
	goVersion string
	spec      api.JobSpec
}

func newVetJob(ctx context.Context, dir string, members int) (*vetJob, error) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		return nil, fmt.Errorf("the demonstration vets Go's standard library and needs Go: %w", err)
	}
	version, err := output(ctx, goTool, "env", "GOVERSION")
	if err != nil {
		return nil, err
	}
	list, err := output(ctx, goTool, "list", "-json=ImportPath,Dir,GoFiles", "std")
	if err != nil {
		return nil, err
	}
	slices, n, err := share(list, members)
	if err != nil {
		return nil, err
	}
	cache := filepath.Join(dir, "cache")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	priority := 50
	return &vetJob{packages: n, goVersion: strings.TrimSpace(version), spec: api.JobSpec{
		Name: "vet-std", Count: members, Template: api.Template{Priority: &priority, Command: []string{"sh", "-c", `exec "$GO" vet '-gcflags=all=-N -l' $(sed -n "$((MUSTER_INDEX + 1))p" packages.txt)`}, Env: map[string]string{
			"GO": goTool, "GOCACHE": cache, "GOPATH": filepath.Join(dir, "gopath"), "GOTOOLCHAIN": "local", "GOPROXY": "off",
			"GOFLAGS": "", "GOENV": "off", "GO111MODULE": "on", "CGO_ENABLED": "0", "GOGC": "400", "GOMAXPROCS": "1",
		}, Resources: api.ResourcesSpec{CPU: 1, Memory: 1 << 30}, Inputs: []api.InputSpec{{Path: "packages.txt", Content: &slices}}},
		// Each member takes its own line of the list.
		// Vet looks at the source; how well the packages that it imports are compiled is all the same.,
		Timeout: api.Duration(10 * time.Minute),
	}}, nil
}

func (j *vetJob) submission() api.JobSubmission { return api.JobSubmission{Spec: j.spec} }

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = os.TempDir() // outside of any module
	cmd.Env = append(os.Environ(), "GOFLAGS=", "CGO_ENABLED=0", "GO111MODULE=on")
	cmd.WaitDelay = time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// share deals the packages to the members so that each has about as much source
// to read: largest first, to the one that has least. One line a member.
func share(list string, members int) (string, int, error) {
	type pkg struct {
		ImportPath, Dir string
		GoFiles         []string
		size            int64
	}
	var packages []pkg
	for dec := json.NewDecoder(strings.NewReader(list)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, fmt.Errorf("go list std: %w", err)
		}
		for _, f := range p.GoFiles {
			if st, err := os.Stat(filepath.Join(p.Dir, f)); err == nil {
				p.size += st.Size()
			}
		}
		packages = append(packages, p)
	}
	if len(packages) < members {
		return "", 0, fmt.Errorf("go list std: %d packages for %d members", len(packages), members)
	}
	slices.SortFunc(packages, func(a, b pkg) int {
		return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.ImportPath, b.ImportPath))
	})
	lines := make([][]string, members)
	load := make([]int64, members)
	for _, p := range packages {
		least := 0
		for i := range load {
			if load[i] < load[least] {
				least = i
			}
		}
		lines[least] = append(lines[least], p.ImportPath)
		load[least] += p.size + 1
	}
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.Join(l, " ") + "\n")
	}
	return b.String(), len(packages), nil
}
