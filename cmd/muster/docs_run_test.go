package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	// prose says that commands between backticks in the text run as well: the page has few lines of
	// their own. Each is run once.
	prose bool
	// shell are the first lines of blocks all of whose lines run, and not only the commands of muster:
	// those with curl, or with a program of the page's own.
	shell []string
	// python says that the blocks of Python run, each as a program of its own.
	python bool
	// replace are pairs: what blocks of shell and python hold, and what they hold here.
	replace []string
	// root says that the page needs root.
	root bool
	// server is a shell script that becomes the server, in place of muster dev. After it has run
	// something, after waits until its nodes have gone.
	server, after string
	// needs is a program without which the page is left out.
	needs string
	// container says that the page runs containers: the image web:1 is in web.tar, and its files are in
	// root.
	container bool
}

// needsRegistry are lines whose images this test cannot pull: no line of another kind may use it.
const needsRegistry = ""

const (
	// nodeBefore runs a job named job, and names a node that it was on.
	nodeBefore = `muster run --name job -- true
ID=$(muster node list --all --json | jq -r '.nodes[0].id')
`
	// busyNode makes ID a node with work, which stays when it is drained. There is room for more work.
	busyNode = `muster run --detach --name busy --cpu 0.1 --memory 16MiB -- sleep 1000
until ID=$(muster node list --json | jq -er '[.nodes[] | select(.allocs > 0)][0].id // empty'); do sleep 0.05; done
`
	// hostsBefore makes the files that the configuration of hosts names, and a busy node.
	hostsBefore = `ssh-keygen -q -t ed25519 -N '' -f id_ed25519
echo "10.0.0.11 $(cut -d' ' -f1-2 id_ed25519.pub)" > known_hosts
sed -i "s,/etc/muster/,$PWD/,; s,/var/lib/muster,$PWD/data," hosts.yaml
muster run --name job -- true
` + busyNode
	// whereServer sets the address of the server, and its data directory.
	whereServer = `ADDRESS=$(jq -er .address config/muster/current.json) ; DATA=$(jq -er .data_dir config/muster/current.json)
`
	// noNodes waits until the nodes of a server have gone, which outlive it.
	noNodes = `while muster node list --json | jq -e '.nodes | length > 0' > /dev/null; do sleep 0.05; done
`
)

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
sed -i 's/2000/3000/' web.yaml && muster job submit web.yaml
muster run --name sweep --count 30 --cpu 0.01 --memory 1MiB -- false || true`,
		instead: map[string]string{
			// Each of its members fails again, and is there for the next line.
			"muster job retry sweep":                                "muster job retry sweep; ! muster job wait sweep",
			"muster job retry sweep 7 20-29":                        "muster job retry sweep 7 20-29; ! muster job wait sweep",
			"muster job retry sweep --all":                          "muster job retry sweep --all; ! muster job wait sweep",
			"muster job retry sweep --wait":                         "! muster job retry sweep --wait",
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
		// The page's addresses and secrets are made up.
		shell: []string{"A=http://127.0.0.1:4750 ; T=\"Authorization"}, python: true,
		replace: []string{"http://127.0.0.1:4750", "http://$ADDRESS", "DATA_DIR", "$DATA", "SECRET", "$SECRET"},
		instead: map[string]string{
			"muster env delete python": "muster env delete python ; muster env apply python.yaml",
			`curl -s -H "$T" -H "$J" -d '{"environment": "python", "wait": "10s", "idle": "1m"}' $A/v1/claims`: `CLAIM=$(curl -sf -H "$T" -H "$J" -d '{"environment": "python", "wait": "10s", "idle": "1m"}' $A/v1/claims)
RUNNER=$(echo "$CLAIM" | jq -er .runner) ; SECRET=$(echo "$CLAIM" | jq -er .secret)`,
			`echo '{"command": ["sh", "-c", "sleep 1; echo hi"]}' | websocat -H "$S" ws://127.0.0.1:4750/v1/runners/RUNNER/exec`: "", // a program that few have
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
		page:   "docs/hosts.md",
		needs:  "ssh-keygen",
		prose:  true,
		yaml:   []string{"hosts.yaml"},
		before: hostsBefore,
		instead: map[string]string{
			"muster config check -c /etc/muster/muster.yaml": "muster config check -c hosts.yaml",
			"muster server -c /etc/muster/muster.yaml":       "", // it would use /var/lib, and the hosts are made up
			"muster provider check lab":                      "muster provider check local",
			"muster node show ID":                            "muster node show $ID",
			"muster explain JOB":                             "muster explain job",
			"muster node drain ID --deadline 10m":            "muster node drain $ID --deadline 10m",
			"muster node hold ID --reason \"new disk\"":      "muster node hold $ID --reason 'new disk'",
			"muster node run ID":                             "muster node run $ID",
		},
	},
	{
		page:   "docs/operations.md",
		prose:  true,
		before: nodeBefore + "echo 1 > input",
		instead: map[string]string{
			"muster run --input":                 "muster run --input input -- cat input",
			"muster config check -c FILE":        "muster config check -c muster.yaml",
			"muster job show":                    "muster job show job",
			"muster backup FILE":                 "muster backup state.backup",
			"muster restore FILE --data-dir DIR": "muster restore state.backup --data-dir restored",
			// The tests of cmd/muster/internal/serve apply files, to servers that have one.
			"muster config apply FILE":         "",
			"muster config apply":              "",
			"muster config diff FILE":          "muster config diff muster.yaml",
			"muster config diff --addr SERVER": "",
			"muster node show":                 "muster node show $ID",
			"muster pool resume":               "muster pool resume dev",
			"muster-node dial":                 "", // it waits for bytes of a server
			"muster dev":                       "", // this script has one already
			"muster server":                    "",
			"muster dev --data-dir":            "",
		},
	},
	{
		page:      "docs/volumes.md",
		prose:     true,
		container: true,
		yaml:      []string{"pools.yaml", ""},
		server: `mkdir -p $D/srv/data $D/srv/results && echo 'print(1)' > $D/srv/data/train.py
{ sed /^pools:/,\$d muster.yaml | sed 's/name: local/name: lab/'; sed "s,/srv,$D/srv,; s/provider: lab/&\n    idle_timeout: 300ms/" pools.yaml; } > server.yaml
echo $$ > server.pid
exec muster server -c server.yaml`,
		before: "cat web.tar | muster image load -\n" + nodeBefore,
		instead: map[string]string{
			"muster run --image python:3.13 -v data:/data -v results:/out:rw -- python /data/train.py": "muster run --image web:1 -v data:/data -v results:/out:rw -- sh -c 'cat /data/train.py > /out/copy' && cmp $D/srv/data/train.py $D/srv/results/copy",
			"muster node show": "muster node show $ID",
			"muster explain":   "muster explain job",
		},
		// Nodes of the pool have run without this volume. Until the server has read its configuration
		// again, the job is refused.
		after: `echo late > $D/srv/data/late
sed -i "s,^ *volumes:,&\n      late: {path: $D/srv/data}," server.yaml
kill -HUP $(cat server.pid)
until muster run --image web:1 -v late:/late -- cat /late/late 2> refused; do grep 'no pool has a volume named late' refused; sleep 0.05; done
` + noNodes,
	},
	{
		page:  "docs/install.md",
		prose: true,
		instead: map[string]string{
			"muster backup FILE": "muster backup state.backup",
		},
	},
	{
		page:   "docs/gpus.md",
		prose:  true,
		before: nodeBefore,
		instead: map[string]string{
			"muster run --gpus 1 --image nvidia/cuda:12.6.3-base-ubuntu24.04 -- nvidia-smi": "muster run --gpus 1 -- nvidia-smi 2>&1 | grep 'short of gpu'", // there is none here
			"muster provider check NAME --dry-run":                                          "muster provider check local --dry-run",
			"muster node show":                                                              "muster node show $ID",
			"muster explain":                                                                "muster explain job",
		},
	},
	{
		page:      "docs/coming-from.md",
		container: true,
		prose:     true,
		before: `cat web.tar | muster image load -
printf 'name: service\ntype: service\ncommand: [sleep, "1000"]\nresources: {cpu: 0.01, memory: 1MiB}\n' > web.yaml
printf 'name: python\nwarm: {min: 1, max: 1}\nresources: {cpu: 0.01, memory: 1MiB}\n' > python.yaml
echo 'echo from a script' > job.sh
muster run --name job --output result -- touch result
` + busyNode,
		instead: map[string]string{
			"muster run --image IMAGE -- CMD":                     "muster run --image web:1 -- true",
			"muster run --detach --name web --image IMAGE":        "muster run --detach --name web --image web:1 --cpu 0.1 -- sleep 1000",
			"muster run --memory 256m --cpu-max 0.5 …":            "muster run --memory 256m --cpu 0.1 --cpu-max 0.5 -- true",
			"muster run --env A=1 --workdir /app --user nobody …": "muster run --image web:1 --cpu 0.1 --env A=1 --workdir /tmp --user nobody -- sh -c 'test $A:$PWD:$(id -un) = 1:/tmp:nobody'",
			"muster port web 8080:80":                             "", // it ends with Ctrl-C only
			"muster job logs -f web":                              "muster job logs web",
			"muster job wait web":                                 "muster job wait job",
			"muster run -it --image IMAGE -- bash":                "", // there is no terminal here
			"muster exec -it web -- sh":                           "echo 'exit 0' | muster exec -i web -- sh",
			"muster cp web:/etc/app .":                            "muster cp web:/etc/passwd .",
			"muster image load FILE":                              "muster image load web.tar",
			"muster image pull IMAGE":                             needsRegistry,
			"muster run --detach --input job.sh -- sh job.sh":     "muster run --cpu 0.1 --input job.sh -- sh job.sh",
			"muster job submit FILE":                              "muster job submit web.yaml",
			"muster job retry JOB":                                "", // docs/jobs.md runs it, on jobs that failed
			"muster job retry JOB 7 20-29":                        "",
			"muster run -- CMD":                                   "muster run --cpu 0.1 -- true",
			"muster run -it -- bash":                              "",
			"muster run --count 100 …":                            "muster run --count 10 --cpu 0.1 --memory 16MiB -- sh -c 'test $MUSTER_INDEX -lt 10'",
			"muster job wait JOB":                                 "muster job wait job",
			"muster explain JOB":                                  "muster explain busy",
			"muster job stop JOB":                                 "muster job stop service",
			"muster job show JOB":                                 "muster job show job",
			"muster node drain ID":                                "muster node drain $ID ; muster node run $ID",
			"muster job fetch":                                    "muster job fetch job --dest results && test -e results/result",
			"muster job logs -f":                                  "muster job logs -f job",
			"muster exec":                                         "muster exec busy -- true",
			"muster cp":                                           "muster cp job.sh busy:copy",
			"muster port":                                         "",
			"muster job revert JOB":                               "sed -i s/1000/2000/ web.yaml && muster job submit web.yaml && muster job revert service 2",
			"muster job scale JOB N":                              "muster job scale service 2",
			"muster node hold ID":                                 "muster node hold $ID --reason disk ; muster node run $ID",
			"muster namespace set":                                "muster namespace set default --jobs 100",
			"muster job logs JOB/INDEX":                           "muster job logs job/0",
			"muster exec JOB/INDEX -- sh":                         "echo 'exit 0' | muster exec -i busy/0 -- sh",
			"muster env apply FILE":                               "muster env apply python.yaml",
			"muster claim ENVIRONMENT":                            "muster claim python --wait 1m",
			"muster exec RUNNER -- CMD":                           "muster exec RUNNER -- true",
			"muster cp FILE RUNNER:/PATH":                         "muster cp job.sh RUNNER:copy",
		},
	},
	{
		page:      "docs/poseidon.md",
		container: true,
		prose:     true,
		yaml:      []string{"poseidon.yaml"},
		server: `echo 0123456789abcdef > poseidon.token
{ grep -v ^listen: muster.yaml ; sed "s,/etc/muster/,$PWD/,; s/10.0.0.5:4750/127.0.0.1:0/" poseidon.yaml ; } > server.yaml
exec muster server -c server.yaml`,
		before: "cat web.tar | muster image load -\n",
		shell:  []string{"A=http://127.0.0.1:4750/api/v1"},
		replace: []string{"http://127.0.0.1:4750", "http://$ADDRESS", "/etc/muster/", "", "python:3.13", "web:1",
			// The image has no Python.
			`printf 'print("Hello, " + input())'`, `printf 'read name; echo "Hello, $name"'`, "python3", "sh"},
		instead: map[string]string{
			// The page makes it further below.
			"muster env show codeocean/17": "",
			"muster explain codeocean/17":  "",
			"muster env apply":             "muster env list --namespace codeocean",
			"muster claim":                 "", // the page says that it does not go with these clients
			`curl -s -H "$T" $A/runners -d '{"executionEnvironmentId": 10, "inactivityTimeout": 60}'`: `until R=$(curl -sf -H "$T" $A/runners -d '{"executionEnvironmentId": 10, "inactivityTimeout": 60}' | jq -r .runnerId) && test -n "$R"; do sleep 0.1; done`,
			"R=bi53aqi6kwawuh27-1-1": "",
			`echo World | websocat -n -H "$T" "ws://127.0.0.1:4750/api/v1/runners/$R/websocket?executionID=bebd2497…"`: "", // a program that few have
		},
		after: `muster env show codeocean/10
muster explain codeocean/10
curl -sf -H "$T" -X DELETE $A/execution-environments/10
` + noNodes,
	},
	{
		page:  "docs/providers.md",
		root:  true,
		needs: "/usr/sbin/sshd",
		prose: true,
		shell: []string{"export CLOUD_DIR=/tmp/cloud"},
		before: `ssh-keygen -q -t ed25519 -N '' -f id_ed25519
` + nodeBefore,
		replace: []string{"/tmp/cloud", "$D/cloud", "~/.ssh/", "", "docs/examples/", "$EXAMPLES/"},
		instead: map[string]string{
			"muster provider check NAME": "muster provider check local",
			"muster pool show":           "muster pool show dev",
		},
		after: `cloud() { "$EXAMPLES/provider-netns.sh"; }
LIST='{"version": 1, "op": "list", "provider": "p", "owner": "me"}'
I=$(echo "$LIST" | cloud | jq -er '.instances[0].id')
echo "{\"version\": 1, \"op\": \"destroy\", \"provider\": \"p\", \"owner\": \"me\", \"destroy\": [\"$I\"]}" | cloud
echo "$LIST" | cloud | jq -e '.instances == [] and .complete'
`,
	},
	{
		page:   "docs/nodes.md",
		prose:  true,
		before: busyNode,
		instead: map[string]string{
			"muster node show ID":                     "muster node show $ID",
			"muster node show":                        "muster node show $ID",
			"muster node hold ID --for 2h --reason …": "muster node hold $ID --for 2h --reason disk",
			"muster node drain ID":                    "muster node drain $ID ; muster node run $ID",
			"muster node drain ID --deadline 10m":     "muster node drain $ID --deadline 10m ; muster node run $ID",
			"muster node destroy ID --now":            "muster node destroy $ID --now",
			"muster node hold":                        "",
			"muster node drain":                       "",
			"muster node destroy":                     "",
			"muster node run ID":                      "muster node run $ID",
			"muster pool show":                        "muster pool show dev",
			"muster pool resume":                      "muster pool resume dev",
			"muster run --exclusive":                  "muster run --exclusive -- true",
			"muster-node agent --broken FILE":         "", // servers start agents
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
	bin := built(t)
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("the commands of the pages are python3's, which is not here")
	}
	examples, err := filepath.Abs("../../docs/examples")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var files []string
	for _, p := range pageRuns {
		if _, err := exec.LookPath(p.needs); p.needs != "" && err != nil {
			t.Logf("%s is left out: %v", p.page, err)
			continue
		}
		if p.root && os.Geteuid() != 0 {
			t.Logf("%s is left out: it needs root", p.page)
			continue
		}
		if p.container && !canRunContainers() {
			t.Logf("%s is left out: it needs root and crun or runc", p.page)
			continue
		}
		if p.container {
			image := imagetest.Busybox(t)
			imagetest.WriteArchive(t, filepath.Join(dir, "web.tar"), "web:1", image)
			p.before = "cp " + dir + "/web.tar .; mkdir -p root/bin && cp /bin/busybox root/bin\n" + p.before
		}
		file := filepath.Join(dir, strings.ReplaceAll(strings.TrimSuffix(p.page, ".md"), "/", "-")+".txt")
		if err := os.WriteFile(file, []byte(p.script(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Setup: func(e *testscript.Env) error {
			e.Setenv("EXAMPLES", examples)
			return setup(e, bin)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"ready": ready, "alone": alone},
	})
}

var (
	proseLine   = regexp.MustCompile("`(muster(?:-node)? [^`]+)`")
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

// fill puts what a line of shell or a program of Python is to hold here in place of what the page holds.
// An answer of an error fails.
func (p *pageRun) fill(text string) string {
	pairs := append([]string{"curl -s ", "curl -sf ", "RUNNER", `"$RUNNER"`}, p.replace...)
	return strings.NewReplacer(pairs...).Replace(text)
}

// pageScript is a page that is being read: what is run, and the files that it needs.
type pageScript struct {
	*pageRun
	lines, files []string
	// used are the lines that had another in instead; said are commands of the prose that have run.
	used, said map[string]bool
	// yamls and pythons are how many blocks there were.
	yamls, pythons int
}

// add adds a command of muster.
func (s *pageScript) add(command string) {
	if other, ok := s.instead[command]; ok {
		s.used[command] = true
		command = other
	}
	command = strings.ReplaceAll(command, "RUNNER", `"$RUNNER"`)
	if claimLine.MatchString(command) {
		command = "RUNNER=$(" + command + ")"
	}
	if command != "" {
		s.lines = append(s.lines, command)
	}
}

// block adds a block of the page, fence is the line that it began with.
func (s *pageScript) block(fence string, lines []string) {
	text := strings.Join(lines, "\n") + "\n"
	switch {
	case fence == "```yaml":
		if s.yamls < len(s.yaml) && s.yaml[s.yamls] != "" {
			s.files = append(s.files, "-- "+s.yaml[s.yamls]+" --\n"+imageLine.ReplaceAllString(text, ""))
		}
		s.yamls++
	case fence == "```python" && s.python:
		s.pythons++
		file := fmt.Sprintf("page%d.py", s.pythons)
		s.files = append(s.files, "-- "+file+" --\n"+text)
		var changes strings.Builder
		for i := 0; i+1 < len(s.replace); i += 2 {
			fmt.Fprintf(&changes, "s|%s|%s|;", s.replace[i], s.replace[i+1])
		}
		s.lines = append(s.lines, fmt.Sprintf("sed %q %s > here.py ; python3 here.py", changes.String(), file))
	case fence != "```yaml" && slices.ContainsFunc(s.shell, func(first string) bool { return strings.HasPrefix(lines[0], first) }):
		for _, line := range lines {
			if other, ok := s.instead[line]; ok {
				s.used[line] = true
				s.lines = append(s.lines, other)
			} else {
				s.lines = append(s.lines, s.fill(line))
			}
		}
	case fence != "```yaml":
		for _, line := range lines {
			if m := musterLine.FindStringSubmatch(line); m != nil {
				s.add(lineComment.ReplaceAllString(m[1], ""))
			}
		}
	}
}

// script is the page as a script of TestScript's kind.
func (p *pageRun) script(t *testing.T) string {
	text, err := os.ReadFile(filepath.Join("../..", p.page))
	if err != nil {
		t.Fatal(err)
	}
	s := &pageScript{pageRun: p, used: map[string]bool{}, said: map[string]bool{}}
	fence, block := "", []string(nil)
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "```") && fence == "":
			fence, block = line, nil
		case line == "```":
			s.block(fence, block)
			fence = ""
		case fence != "":
			block = append(block, line)
		case p.prose:
			for _, m := range proseLine.FindAllStringSubmatch(line, -1) {
				if !s.said[m[1]] {
					s.said[m[1]] = true
					s.add(m[1])
				}
			}
		}
	}
	for command := range p.instead {
		if !s.used[command] {
			t.Errorf("%s has no line %q", p.page, command)
		}
	}
	if len(s.lines) < 3 {
		t.Errorf("%s: only %d command lines were found: does the pattern still fit?", p.page, len(s.lines))
	}
	server := "exec muster dev --listen 127.0.0.1:0 &server&"
	if p.server != "" {
		server = "exec sh server.sh &server&"
		s.files = append(s.files, "-- server.sh --\n"+p.server+"\n")
	}
	if len(p.shell) > 0 {
		p.before = whereServer + p.before
	}
	return fmt.Sprintf("%s\nready\nexec sh page.sh\nkill -INT server\nwait server\nalone\n-- page.sh --\nset -ex\n%s\n%s\n%s\n%s",
		server, p.before, strings.Join(s.lines, "\n"), p.after, strings.Join(s.files, ""))
}
