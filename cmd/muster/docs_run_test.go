package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/musterhq/muster/internal/imagetest"
)

// pageRun says how the command lines of a page are run: all of them, in their order, by one shell
// beside one muster dev. A line that cannot run here as it stands has an entry in instead: another
// line, or "" with the reason in a comment.
type pageRun struct {
	page string
	// before runs first: files and jobs that the page takes for granted.
	before string
	// yaml names the YAML blocks of the page, which are written to these files; "" for those that no
	// command uses.
	yaml    []string
	instead map[string]string
	// container says that the page runs containers: the image web:1 is in web.tar, and its files are in
	// root.
	container bool
}

// needsRegistry are lines whose images this test cannot pull: no line of another kind may use it.
const needsRegistry = ""

var pageRuns = []pageRun{
	{
		page: "README.md",
		yaml: []string{"hello.yaml", "python.yaml", "muster.yaml", ""},
		before: `echo 'print(2)' > script.py
muster run --detach --name web -- sleep 1000`,
		instead: map[string]string{
			"muster dev --data-dir ~/muster-dev":                                           "", // this script has one already
			"muster events -f":                                                             "muster events",
			"muster run --image python:3.13 -- python3 -c 'print(1)'":                      needsRegistry,
			"muster run --detach --name web --image nginx:1.29 --memory 256MiB --pids 200": needsRegistry,
			"muster exec -it web -- sh":                                                    "echo 'exit 0' | muster exec -i web -- sh",
			"muster exec --detach web -- make":                                             "muster exec --detach web -- true",
			"muster cp web:/etc/nginx conf":                                                "muster cp web:/etc/hostname conf",
			"muster port web 8080:80":                                                      "", // it ends with Ctrl-C only
			"muster config check -c /etc/muster/muster.yaml":                               "muster config check -c muster.yaml",
			"muster server -c /etc/muster/muster.yaml":                                     "", // it would use /var/lib
		},
	},
	{
		page: "docs/jobs.md",
		yaml: []string{"", "", ""},
		before: `mkdir -p data conf && echo 'print(open("data/x").read())' > train.py && echo 1 > data/x
printf '#!/bin/sh\necho built\n' > build.sh && cp build.sh serve && chmod +x build.sh serve && touch conf/prod.yaml
printf 'name: web\ntype: service\ncommand: [sleep, "1000"]\nresources: {cpu: 0.01, memory: 1MiB}\n' > web.yaml
muster job submit web.yaml
sed -i 's/1000/2000/' web.yaml && muster job submit web.yaml
sed -i 's/2000/3000/' web.yaml && muster job submit web.yaml`,
		instead: map[string]string{
			"muster run --input conf/prod.yaml:app.yaml -- ./serve": "muster run --input conf/prod.yaml:app.yaml --input serve -- ./serve",
			"muster history --id ID":                                "muster history --id $(muster history --json | jq -r '.jobs[0].id')",
			"muster job logs ID-0-1":                                "muster job logs $(muster history --json | jq -r '.jobs[0].id')-0-1",
			"muster job revert web":                                 "muster job revert web 1", // none is known to be healthy yet
			"muster job revert web 3":                               "muster job revert web 2",
		},
	},
	{
		page:   "docs/runners.md",
		yaml:   []string{"python.yaml", ""},
		before: `mkdir -p src && echo 'import sys; print(sys.stdin.read())' > script.py && echo in > in`,
		instead: map[string]string{
			"muster cp wheels RUNNER:/wheels":                                                           "", // the runner of the page above is released, and pip needs an image
			"muster exec RUNNER -- pip install --no-index --find-links /wheels numpy":                   "",
			"muster cp ./src RUNNER:/workspace ; muster ls RUNNER:/workspace ; muster port RUNNER 8000": "muster cp ./src RUNNER:src ; muster ls RUNNER:src",
			"muster x python -- python3 script.py < in > out":                                           "muster x python -- python3 -c 'import sys; print(sys.stdin.read())' < in > out",
		},
	},
	{
		page:   "docs/access.md",
		before: `echo 0123456789abcdef > token`,
		instead: map[string]string{
			"muster job list": "muster --context local job list", // the page is on another host here
		},
	},
	{
		page:      "docs/containers.md",
		container: true,
		instead: map[string]string{
			"muster dev": "", // this script has one already
			"muster run --image python:3.13 -- python3 -c 'print(1)'":                                   needsRegistry,
			"docker save web:1 | muster image load -":                                                   "cat web.tar | muster image load -",
			"podman save web:1 | muster image load --name web:1 -":                                      "cat web.tar | muster image load --name web:1 -",
			"docker export CONTAINER | muster image load --rootfs --name snapshot:1 -":                  "tar -C root -c . | muster image load --rootfs --name snapshot:1 -",
			"mmdebstrap --variant=minbase trixie - | muster image load --rootfs --name debian:trixie -": "tar -C root -c . | muster image load --rootfs --name debian:trixie -",
			"tar -C ROOT -c . | muster image load --rootfs --name mine:1 --platform linux/arm64 -":      "tar -C root -c . | muster image load --rootfs --name mine:1 --platform linux/arm64 -",
		},
	},
	{
		page: "docs/scheduling.md",
		before: `printf 'name: web\ntype: service\ncommand: [sleep, "1000"]\nresources: {cpu: 0.01, memory: 1MiB}\n' > web.yaml
printf 'name: train\ncount: 7\ncommand: ["true"]\nresources: {cpu: 0.01, memory: 1MiB}\n' > train.yaml
muster job submit web.yaml`,
	},
}

// TestPagesRun runs the command lines of pages that users follow. Images need a registry, so
// environments run as processes of the node.
func TestPagesRun(t *testing.T) {
	bin, err := filepath.Abs("../../bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("the commands of the pages are python3's, which is not here")
	}
	dir := t.TempDir()
	var files []string
	for _, p := range pageRuns {
		if p.container && !canRunContainers() {
			t.Logf("%s is left out: it needs root and crun or runc", p.page)
			continue
		}
		if p.container {
			image := imagetest.Busybox(t)
			imagetest.WriteArchive(t, filepath.Join(dir, "web.tar"), "web:1", image)
			p.before = "cp " + dir + "/web.tar .; mkdir -p root/bin && cp /bin/busybox root/bin"
		}
		file := filepath.Join(dir, strings.ReplaceAll(strings.TrimSuffix(p.page, ".md"), "/", "-")+".txt")
		if err := os.WriteFile(file, []byte(p.script(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(e *testscript.Env) error { return setup(e, bin) },
		Cmds:  map[string]func(ts *testscript.TestScript, neg bool, args []string){"ready": ready, "alone": alone},
	})
}

var (
	musterLine  = regexp.MustCompile(`^(?:\$ )?(?:bin/)?((?:[a-z]+ [^|]*\| )?muster .*)$`)
	lineComment = regexp.MustCompile(` +# .*$`)
	imageLine   = regexp.MustCompile(`(?m)^image: .*\n`)
	claimLine   = regexp.MustCompile(`^muster claim [^;]*$`)
)

// canRunContainers reports whether muster dev can run containers here.
func canRunContainers() bool {
	_, crun := exec.LookPath("crun")
	_, runc := exec.LookPath("runc")
	return os.Geteuid() == 0 && (crun == nil || runc == nil)
}

// script is the page as a script of TestScript's kind.
func (p *pageRun) script(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("../..", p.page))
	if err != nil {
		t.Fatal(err)
	}
	var lines, archive []string
	used, blocks, fence := map[string]bool{}, 0, ""
	var yaml []string
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence, yaml = line, nil
		case line == "```":
			if fence == "```yaml" {
				if blocks < len(p.yaml) && p.yaml[blocks] != "" {
					archive = append(archive, "-- "+p.yaml[blocks]+" --\n"+imageLine.ReplaceAllString(strings.Join(yaml, "\n")+"\n", ""))
				}
				blocks++
			}
			fence = ""
		case fence == "```yaml":
			yaml = append(yaml, line)
		case fence != "":
			m := musterLine.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			command := lineComment.ReplaceAllString(m[1], "")
			if other, ok := p.instead[command]; ok {
				used[command] = true
				command = other
			}
			command = strings.ReplaceAll(command, "RUNNER", `"$RUNNER"`)
			if claimLine.MatchString(command) {
				command = "RUNNER=$(" + command + ")"
			}
			if command != "" {
				lines = append(lines, command)
			}
		}
	}
	for command := range p.instead {
		if !used[command] {
			t.Errorf("%s has no line %q", p.page, command)
		}
	}
	if len(lines) < 3 {
		t.Errorf("%s: only %d command lines were found: does the pattern still fit?", p.page, len(lines))
	}
	return fmt.Sprintf("exec muster dev --listen 127.0.0.1:0 &server&\nready\nexec sh page.sh\nkill -INT server\nwait server\nalone\n-- page.sh --\nset -ex\n%s\n%s\n%s",
		p.before, strings.Join(lines, "\n"), strings.Join(archive, ""))
}
