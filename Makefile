# Muster. `make demo` shows it, `make test` tests it; both need only Go and make.

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# Nothing of the machine or its environment goes into the programs: one commit, one toolchain, one hash (TestBuildsAreReproducible).
LDFLAGS  = -s -w -buildid= -X github.com/musterhq/muster/internal/version.release=$(VERSION)
BUILD    = CGO_ENABLED=0 GOFLAGS= GOEXPERIMENT= GOAMD64=v1 GOARM64=v8.0 $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)"
# Lint and tests compile with the flags of the programs, so that each package is compiled once for all of them.
SHARED   = CGO_ENABLED=0 GOFLAGS="-trimpath -buildvcs=false"
# Most of the longest tests wait: packages and parallel tests are run four at a time, on however few processors.
TEST     = $(GO) test -count=1 -p 4 -parallel 4 -timeout 20m
# muster-init is built first and embedded in muster-node.
INIT     = internal/agent/initbin/bin/muster-init
INIT_SRC = $(shell find cmd/muster-init internal/sandbox internal/safetar internal/wait internal/wire/init \( -name '*.go' -o -name '*.s' \) ! -name '*_test.go') $(wildcard *.go)
# Packages whose tests run under the race detector as well, in their short form: all tests together have a quarter of an hour.
RACE = ./internal/state/... ./internal/raftlog/... ./internal/peers ./internal/cluster ./internal/forward ./internal/control/... ./internal/conns/... ./internal/agent/ ./internal/agent/journal ./internal/agent/fencing ./internal/agent/inputs ./internal/agent/fake/... ./internal/agent/tunnel ./internal/agent/outputs ./internal/agent/launch ./internal/agent/destinations ./internal/agent/rootless ./internal/httpapi/... ./internal/door/... ./internal/inside/... ./internal/claim/... ./internal/submit/... ./internal/operate/... ./internal/history/... ./internal/socket/... ./internal/blob/... ./internal/images/... ./client/... ./internal/server/... ./internal/cloud/driver ./internal/cloud/ec2/... ./internal/cloud/standin/... ./internal/sim/... ./internal/cloud/qemu ./internal/cloud/hetzner/... ./internal/cloud/openstack/... ./internal/cloud/azure/... ./internal/cloud/gce/... ./internal/agent/metadata ./internal/imagearch

.PHONY: build demo test race check lint generate generated sim soak bench bench-sched bench-sandbox bench-runners bench-growth bench-history bench-clouds replay fuzz isolation attack notice vm-image e2e-qemu e2e-vm e2e-ssh e2e-clouds e2e-clouds-short e2e-ha e2e-ha-short e2e-ec2sdk e2e-openstack e2e-clock e2e-packages clean install uninstall packages FORCE nodes e2e-packages-twice e2e-vm-unit

build: bin/muster bin/muster-node bin/muster-init

$(INIT): $(INIT_SRC) go.mod
	@mkdir -p $(dir $@)
	$(BUILD) -o $@ ./cmd/muster-init

bin/muster-init: $(INIT)
	@mkdir -p bin
	cp $< $@

bin/muster-node: $(INIT) FORCE
	@mkdir -p bin
	$(BUILD) -o $@ ./cmd/muster-node

bin/muster: FORCE
	@mkdir -p bin
	$(BUILD) -o $@ ./cmd/muster

# The agents that a server needs for nodes of the other architecture, beside its own: for EC2's Graviton, Hetzner's CAX and so on.
nodes: build
	@for arch in amd64 arm64; do GO=$(GO) packaging/programs $(VERSION) $$arch bin/linux-$$arch muster-node && mv bin/linux-$$arch/muster-node bin/muster-node-linux-$$arch && rm -r bin/linux-$$arch || exit 1; done

FORCE:

# The main job on real input: vets the Go standard library of this machine.
# Its programs have no drivers of buckets: those are half of what there is to compile.
demo: bin/muster-node bin/lean/muster
	@cp bin/muster-node bin/lean/
	@$(GO) run ./demo/vetstd -bin bin/lean

bin/lean/muster: FORCE
	@mkdir -p bin/lean
	$(BUILD) -tags lean -o $@ ./cmd/muster

test: build
	$(SHARED) $(TEST) $(VET) ./...

race: build
	GO=$(GO) .ci/race $(RACE)

lint:
	@out=$$(gofmt -l . ); if [ -n "$$out" ]; then echo "gofmt: $$out"; exit 1; fi
	$(SHARED) $(GO) vet ./...
	$(SHARED) $(GO) tool staticcheck ./...
	$(SHARED) $(GO) test -run 'AreReadable|TestDocumentsNameWhatExists' .
	$(SHARED) $(GO) test -run 'TestDocs|TestPagesName|TestPagesHave' ./cmd/muster

# The driver of OpenStack against a real Nova; e2e/openstack/README.md says what that needs. Without API_PASTE it is skipped.
e2e-openstack:
	$(GO) test -count=1 -v ./e2e/openstack

# AWS's own SDK against the stand-in of EC2, in a module of its own: the SDK takes minutes to compile.
e2e-ec2sdk:
	cd e2e/ec2sdk && $(GO) test -count=1 .

generate:
	$(SHARED) $(GO) run ./internal/diagrams ARCHITECTURE.md
	$(SHARED) $(GO) run ./internal/syscalls internal/agent/oci

generated:
	$(SHARED) $(GO) run ./internal/diagrams -check ARCHITECTURE.md
	$(SHARED) $(GO) run ./internal/syscalls -check internal/agent/oci

# Lint has vetted all packages.
check: VET = -vet=off
check: build lint generated test race

# Simulated clusters: SEEDS of them, from FIRST on. A failing seed prints its trace and runs again alone with SEEDS=1 FIRST=n.
SEEDS ?= 100
FIRST ?= 1
sim: build
	$(GO) test -count=1 -timeout 60m ./internal/sim -run 'TestScenarios|TestSeeds' -sim.seeds $(SEEDS) -sim.first $(FIRST)

# Longer than a test run may be.
soak: build
	$(GO) test -count=1 -timeout 60m -tags soak ./internal/faults ./internal/raftlog
	$(GO) test -count=1 -timeout 60m ./internal/sim -run TestSeeds -sim.seeds 2000
	$(GO) test -count=1 -timeout 60m ./internal/control/fleet -run TestChurn -fleet.seeds 20 -fleet.busy
	$(GO) test -count=1 -timeout 60m ./internal/state ./internal/decide/... -rapid.checks 20000

FUZZTIME ?= 30s
# To minimize an input that is a whole tar takes up to a minute, in which nothing new is tried:
# targets with such inputs get a second for it.
fuzz: build
	$(GO) test -run '^$$' -fuzz FuzzRead -fuzztime $(FUZZTIME) ./internal/specfile
	$(GO) test -run '^$$' -fuzz FuzzJobSpecValidate -fuzztime $(FUZZTIME) ./api
	$(GO) test -run '^$$' -fuzz FuzzReadInstances -fuzztime $(FUZZTIME) ./internal/cloud/ec2
	$(GO) test -run '^$$' -fuzz FuzzRequests -fuzztime $(FUZZTIME) ./internal/httpapi
	$(GO) test -run '^$$' -fuzz FuzzNext -fuzztime $(FUZZTIME) -fuzzminimizetime 1s ./internal/safetar
	$(GO) test -run '^$$' -fuzz FuzzBelow -fuzztime $(FUZZTIME) ./internal/safetar
	$(GO) test -run '^$$' -fuzz FuzzUntar -fuzztime $(FUZZTIME) -fuzzminimizetime 1s ./internal/sandbox/files
	$(GO) test -run '^$$' -fuzz FuzzUntar -fuzztime $(FUZZTIME) ./cmd/muster/internal/transfer
	$(GO) test -run '^$$' -fuzz FuzzRecord -fuzztime $(FUZZTIME) ./internal/wire/init

# Everything end to end first, on real binaries; then the parts. Quote medians
# and ratios: the machine is seldom alone.
bench: build
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./internal/endtoend
	$(GO) test -run '^$$' -bench . -timeout 30m ./internal/raftlog
	$(GO) test -run '^$$' -bench 'OneMemberJobs|OneJob' -benchtime 3x -timeout 30m ./internal/control/schedule
	$(GO) test -run '^$$' -bench 'OneByOne|RoomFreed' -benchtime 3000x -timeout 30m ./internal/control/schedule
	$(GO) test -run '^$$' -bench 'Pass|Heap' ./internal/decide/size
	MUSTER_INSTANCES=1000 $(GO) test -run '^$$' -bench NewInstances -benchtime 1x ./internal/control/reach
	MUSTER_LINKS=5000 $(GO) test -run '^$$' -bench Links -benchtime 1x ./internal/remote

# The tasks of a recorded GPU cluster through placement, beside first fit and random; TRACE is a directory with the openb trace.
replay:
	$(GO) run ./internal/replay $(TRACE)

# The scheduler, durable and in memory, beside the log alone in the same run; docs/benchmarks.md has the targets. TIMES runs of each: take the median.
TIMES ?= 3
bench-sched: build
	$(GO) test -run '^$$' -bench Propose -timeout 30m ./internal/raftlog
	$(GO) test -run '^$$' -bench 'OneMemberJobs|OneJob|Workers' -benchtime 1x -count $(TIMES) -timeout 60m ./internal/control/schedule
	$(GO) test -run '^$$' -bench Words -benchtime 1x -count $(TIMES) -timeout 60m ./internal/control/schedule
	$(GO) test -run '^$$' -bench Million -benchtime 1x -timeout 60m ./internal/control/schedule
	$(GO) test -run '^$$' -bench Urgent -benchtime 1x -count $(TIMES) -timeout 30m ./internal/control/schedule
	$(GO) test -run '^$$' -bench 'OneByOne|RoomFreed' -benchtime 3000x -timeout 30m ./internal/control/schedule
	$(GO) test -run '^$$' -bench Starts -benchtime 1x -count $(TIMES) -timeout 30m ./internal/sim
	$(GO) test -run '^$$' -bench Apply -benchtime 3x -timeout 30m ./internal/state

# What grows: each at two sizes, four times apart. The ratio of their times is to stay near four, n log n at worst.
bench-growth:
	$(GO) test -run '^$$' -bench Growth -benchtime 3x -timeout 30m ./internal/state ./internal/decide/... ./internal/control/...

# A million ended jobs: the heap of the server, and the size of the history on disk. It writes a gigabyte to TMPDIR.
bench-history:
	$(GO) test -run '^$$' -bench Million -benchtime 1x -timeout 60m ./internal/history

# What users of containers wait for, end to end beside crun, tar and a plain copy in the same run; then the parts. Needs root and crun.
bench-sandbox: build
	$(GO) test -run '^$$' -bench Sandbox -benchtime 1x -timeout 30m ./internal/endtoend
	$(GO) test -run '^$$' -bench Start -benchtime 100x -timeout 30m ./internal/agent/oci
	$(GO) test -run '^$$' -bench Many -benchtime 20x -timeout 30m ./internal/agent/oci
	$(GO) test -run '^$$' -bench 'Take|Release' -benchtime 100x -timeout 30m ./internal/agent/network
	$(GO) test -run '^$$' -bench Pull100MB -benchtime 3x -timeout 30m ./internal/agent/images
	$(GO) test -run '^$$' -bench 'Exec|Port|File|Tar' -timeout 30m ./internal/sandbox/...

# Claims and first output of runners, beside crun exec and the log alone in the same run. Needs root and crun. CLAIMS is how long 1,000 claims each second are made.
CLAIMS ?= 60s
bench-runners: build
	$(GO) test -run '^$$' -bench Runner -benchtime 1x -count $(TIMES) -timeout 60m ./internal/endtoend -endtoend.claims $(CLAIMS)
	$(GO) test -run '^$$' -bench Propose -timeout 30m ./internal/raftlog

# Tries to break out of real containers; docs/isolation.md is what it holds us to. Needs root.
isolation: build
	$(GO) test -count=1 -timeout 30m ./internal/isolation -isolation.all
	$(GO) test -count=1 -timeout 10m ./internal/agent/oci -run 'TestRootInside|TestBadImage'

# Floods and hostile counterparts in their full size, with figures; make test has each in a short form.
attack: build
	$(GO) test -count=1 -timeout 20m ./internal/faults -run '$(ATTACKS)' -faults.attack -v
ATTACKS = TestConnectionsWithoutToken|TestLyingNode|TestHostileSSHD

# What goes along with programs that are given away: licences of what is in them, and a bill of materials (CycloneDX) for scanners.
notice: | bin
	$(GO) run ./internal/notice ./cmd/muster ./cmd/muster-node ./cmd/muster-init > bin/NOTICE
	$(GO) run ./internal/notice -sbom ./cmd/muster ./cmd/muster-node ./cmd/muster-init > bin/sbom.cdx.json

bin:
	mkdir -p bin

# The runtimes, networks and isolation in a machine of their own: another kernel, cgroup v2 alone. Needs QEMU and a mirror of
# Debian for its first run, no rights. VMFLAGS: see go run ./e2e/vm -h.
e2e-vm: build
	$(GO) run ./e2e/vm $(VMFLAGS)

# A server and hosts that it reaches over SSH: network namespaces of this machine, each with an sshd. Needs root, jq and OpenSSH's server.
e2e-ssh: build
	$(SHARED) $(GO) test -count=1 -timeout 10m ./e2e/ssh -v -ssh.run

# One scenario on every cloud that there is a driver for, behind a real server: stand-ins whose machines are network namespaces,
# and QEMU where VM_IMAGE is, which takes long without KVM. Needs root and OpenSSH's server. SEED says which calls the server is killed at.
SEED  ?= $(shell date +%s)
CLOUDS = $(SHARED) $(GO) test -count=1 ./e2e/clouds -v -clouds.run -clouds.seed $(SEED)
e2e-clouds: build
	MUSTER_VM_IMAGE=$(wildcard $(VM_IMAGE)) $(CLOUDS) -timeout 30m -clouds.full -skip TestThreeServers
	MUSTER_VM_IMAGE=$(wildcard $(VM_IMAGE)) $(CLOUDS) -timeout $(if $(wildcard $(VM_IMAGE)),2h,30m) -clouds.full

# What of that fits into two minutes.
e2e-clouds-short: build
	$(CLOUDS) -timeout 5m -skip TestThreeServers

# Three servers under faults, with clients that claim, submit and run. The short form has four faults.
e2e-ha: build
	$(CLOUDS) -timeout 30m -clouds.full -run TestThreeServers

e2e-ha-short: build
	$(CLOUDS) -timeout 5m -run TestThreeServers

# What many instances of EC2's stand-in cost: 64 that are wanted at once within EC2's limits, and 5,000 that are listed.
bench-clouds: build
	$(GO) test -count=1 -timeout 30m ./e2e/clouds -v -run TestFigure -clouds.figures

# A disk image for providers of type qemu. Needs root, mmdebstrap, qemu-utils and a mirror of Debian.
VM_IMAGE ?= /var/lib/muster/images/debian-12.qcow2
vm-image:
	sh packaging/vm-image.sh $(VM_IMAGE)

# The deb in a machine with systemd and cgroups of version 2: its programs are used by an ordinary user, then it is installed, its
# unit used, and it is removed. Needs QEMU, and for its first run what vm-image does. Minutes without KVM.
UNIT_IMAGE ?= $(dir $(VM_IMAGE))e2e.qcow2
$(UNIT_IMAGE):
	MORE=libpam-systemd,uidmap,slirp4netns sh packaging/vm-image.sh $@

e2e-vm-unit: packages $(UNIT_IMAGE)
	MUSTER_VM_IMAGE=$(UNIT_IMAGE) MUSTER_DEB=$$(realpath dist/muster_*_amd64.deb) \
		$(SHARED) $(GO) test -count=1 -timeout 90m ./e2e/packages -v -run TestInMachine

# A machine that the qemu driver makes, with real cloud-init: needs VM_IMAGE and QEMU.
e2e-qemu:
	MUSTER_VM_IMAGE=$(VM_IMAGE) $(GO) test -count=1 -timeout 20m ./internal/cloud/qemu -v -run 'TestRealBoot|TestProbe'

# Steps of the wall clock, by an hour and a year, under real programs: built with a clock of their own, the machine's is left alone.
e2e-clock: build
	$(GO) test -count=1 -timeout 20m ./internal/faults -v -run TestStepsOfTheClock -faults.clock

# The same files as the packages have, below PREFIX. A sample configuration is not put over one that is there.
PREFIX ?= /usr/local
install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/share/man/man1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)/lib/systemd/system $(DESTDIR)/etc/muster
	install bin/muster bin/muster-node $(DESTDIR)$(PREFIX)/bin/
	sed 's#/usr/local/bin/#$(PREFIX)/bin/#' packaging/muster.service > $(DESTDIR)/lib/systemd/system/muster.service
	bin/muster man $(DESTDIR)$(PREFIX)/share/man/man1
	bin/muster completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/muster
	[ -e $(DESTDIR)/etc/muster/muster.yaml ] || install -m 640 packaging/muster.yaml $(DESTDIR)/etc/muster/muster.yaml

# What install has put there, but for /etc/muster. The server must have been stopped.
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/muster $(DESTDIR)$(PREFIX)/bin/muster-node $(DESTDIR)/lib/systemd/system/muster.service
	rm -f $(DESTDIR)$(PREFIX)/share/man/man1/muster.1 $(DESTDIR)$(PREFIX)/share/man/man1/muster-*.1 $(DESTDIR)$(PREFIX)/share/bash-completion/completions/muster

# Packages of this commit in dist/: deb, rpm and an image of the server, for amd64 and arm64. Needs git; nfpm is downloaded by go.
packages: build notice
	GO=$(GO) packaging/build $(VERSION)

# The deb in a fresh Debian: installed, used, upgraded, removed, purged. Needs root, mmdebstrap and a mirror of Debian.
e2e-packages: packages
	e2e/packages/run dist/muster_*_amd64.deb

# The packages of the last commit, built in two clones by people with other settings, are the same byte by byte.
e2e-packages-twice:
	GO=$(GO) e2e/packages/twice

clean:
	rm -rf bin dist $(INIT)
