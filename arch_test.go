package muster_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/musterhq/muster"

// rule says what packages below a place may import of this module. A pattern
// ends in /... for everything below; "." is the root package.
type rule struct {
	place string
	may   []string
	// third says which modules of others it may import: nil none, ["*"] any.
	third []string
	// pure: no clock, go statement, randomness, environment or I/O.
	pure bool
}

// rules are the rings, inner ones first. The first match of a place counts.
// Tests may import anything.
var rules = []rule{
	{place: ".", pure: true},
	{place: "internal/validate", may: []string{"."}, pure: true},
	{place: "api", may: []string{".", "internal/validate"}, pure: true},
	{place: "internal/config", may: []string{".", "api", "internal/validate"}, pure: true},
	{place: "client", may: []string{".", "api"}, third: []string{"github.com/coder/websocket"}},
	{place: "internal/state", may: []string{".", "api"}, third: []string{"github.com/tidwall/btree", "github.com/fxamacker/cbor/v2"}, pure: true},
	{place: "internal/decide/fit", may: []string{".", "api", "internal/state"}, pure: true},
	{place: "internal/decide/share", may: []string{".", "api", "internal/state"}, pure: true},
	{place: "internal/decide/...", may: []string{".", "api", "internal/state", "internal/decide/fit", "internal/decide/share"}, pure: true},
	{place: "internal/raftlog/image", third: []string{"github.com/hashicorp/raft"}},
	{place: "internal/raftlog", may: []string{".", "internal/raftlog/image", "internal/state", "internal/clock"}, third: []string{"*"}},
	{place: "internal/peers", may: []string{"."}, third: []string{"github.com/hashicorp/raft", "golang.org/x/sync", "golang.org/x/sys"}},
	{place: "internal/cluster", may: []string{".", "api", "internal/state", "internal/peers", "internal/raftlog", "internal/forward"}, third: []string{"github.com/hashicorp/raft", "golang.org/x/sync"}},
	{place: "internal/forward", may: []string{".", "internal/conns", "internal/door", "internal/present", "internal/problem"}},
	{place: "internal/wire/init", may: []string{".", "api"}},
	{place: "internal/wire/agent", may: []string{".", "api"}},
	{place: "internal/blob/buckets", may: []string{".", "internal/blob"}, third: []string{"gocloud.dev"}},
	{place: "internal/blob", may: []string{".", "api"}},
	{place: "internal/specfile", may: []string{".", "api", "internal/config"}, third: []string{"github.com/goccy/go-yaml", "go.yaml.in/yaml/v3"}},
	// Identities of clouds, at their registries. Programs that do not import it link none of their libraries.
	{place: "internal/registry/identities", may: []string{".", "api", "internal/registry"}, third: []string{"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/config", "github.com/aws/smithy-go/logging", "cloud.google.com/go/compute/metadata", "golang.org/x/oauth2", "github.com/Azure/azure-sdk-for-go/sdk"}},
	{place: "internal/registry", may: []string{".", "api", "internal/wire/agent"}, third: []string{"github.com/google/go-containerregistry"}},
	{place: "internal/remote/bridge", third: []string{"golang.org/x/sys"}},
	{place: "internal/remote/remotetest", may: []string{"internal/remote"}, third: []string{"golang.org/x/crypto"}},
	{place: "internal/remote", may: []string{".", "internal/remote/bridge"}, third: []string{"golang.org/x/crypto", "golang.org/x/sys"}},
	{place: "internal/atomicfile"},
	{place: "internal/fields"},
	{place: "internal/filelock"},
	{place: "internal/wait"},
	{place: "internal/safetar"},
	{place: "internal/testwait"},
	{place: "internal/clock", may: []string{"."}, third: []string{"golang.org/x/sys"}},
	{place: "internal/locate", may: []string{"."}},
	{place: "internal/conns"},
	{place: "internal/cloud/local", may: []string{".", "api", "internal/cloud", "internal/agent/boot", "internal/agent/journal", "internal/agent/initbox", "internal/agent/teardown", "internal/wire/agent", "internal/wire/init"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/cloud/cloudtest", may: []string{".", "api", "internal/cloud"}},
	// The one package that knows all drivers. Programs that do not import it link none of their libraries.
	{place: "internal/cloud/clouds", may: []string{".", "api", "internal/cloud", "internal/cloud/..."}, third: []string{"go.yaml.in/yaml/v3"}},
	{place: "internal/cloud/boot", may: []string{".", "internal/cloud"}, third: []string{"golang.org/x/crypto"}},
	{place: "internal/cloud/driver", may: []string{".", "internal/cloud"}},
	{place: "internal/cloud/ec2", may: []string{".", "internal/cloud", "internal/cloud/driver"}, third: []string{"github.com/aws/aws-sdk-go-v2/aws", "github.com/aws/aws-sdk-go-v2/config", "github.com/aws/smithy-go/logging"}},
	{place: "internal/cloud/azure/azuretest", may: []string{"internal/cloud/script", "internal/cloud/standin"}, third: []string{"github.com/Azure/azure-sdk-for-go/sdk/azcore"}},
	{place: "internal/cloud/azure", may: []string{".", "internal/cloud", "internal/cloud/driver"}, third: []string{"github.com/Azure/azure-sdk-for-go/sdk", "golang.org/x/crypto"}},
	{place: "internal/cloud/gce/gcetest", may: []string{"internal/cloud/script", "internal/cloud/standin"}, third: []string{"golang.org/x/crypto"}},
	{place: "internal/cloud/gce", may: []string{".", "internal/cloud", "internal/cloud/driver"}, third: []string{"golang.org/x/oauth2"}},
	{place: "internal/cloud/hetzner/hetznertest", may: []string{"internal/cloud/script", "internal/cloud/standin"}, third: []string{"github.com/hetznercloud/hcloud-go/v2"}},
	{place: "internal/cloud/hetzner", may: []string{".", "internal/cloud", "internal/cloud/driver"}, third: []string{"github.com/hetznercloud/hcloud-go/v2"}},
	{place: "internal/cloud/openstack/openstacktest", may: []string{"internal/cloud/script", "internal/cloud/standin"}},
	{place: "internal/cloud/openstack", may: []string{".", "internal/cloud", "internal/cloud/driver"}, third: []string{"github.com/gophercloud/gophercloud/v2"}},
	{place: "internal/cloud/script"},
	{place: "internal/cloud/standin"},
	{place: "internal/cloud/...", may: []string{".", "api", "internal/cloud", "internal/cloud/driver", "internal/cloud/script"}, third: []string{"*"}},
	{place: "internal/cloud", may: []string{".", "api"}},
	{place: "internal/control/link/allocspec", may: []string{".", "api", "internal/state", "internal/wire/agent"}, pure: true},
	{place: "internal/control/link/pulls", may: []string{".", "internal/wire/agent"}},
	{place: "internal/control/link/linktest", may: []string{".", "api", "internal/state", "internal/decide/...", "internal/clock", "internal/cloud", "internal/remote", "internal/wire/agent", "internal/blob"}, third: []string{"golang.org/x/sync", "github.com/tidwall/btree"}},
	{place: "internal/control/link", may: []string{"internal/control/link/allocspec", "internal/control/link/pulls", ".", "api", "internal/state", "internal/decide/...", "internal/clock", "internal/cloud", "internal/remote", "internal/wire/agent", "internal/blob"}, third: []string{"golang.org/x/sync", "github.com/tidwall/btree"}},
	{place: "internal/control/...", may: []string{".", "api", "internal/state", "internal/decide/...", "internal/clock", "internal/cloud", "internal/remote", "internal/wire/agent", "internal/blob"}, third: []string{"golang.org/x/sync", "github.com/tidwall/btree"}},
	{place: "internal/sandbox/system", may: []string{"internal/wire/init"}},
	{place: "internal/sandbox/output", may: []string{"internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/operation", may: []string{"internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/execs", may: []string{"internal/sandbox/operation", "internal/sandbox/output", "internal/sandbox/program", "internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/files", may: []string{"internal/sandbox/account", "internal/sandbox/operation", "internal/sandbox/system", "internal/safetar", "internal/wire/init"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/sandbox/ports", may: []string{"internal/sandbox/operation", "internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/sandboxtest", may: []string{"internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/account", may: []string{"internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox/program", may: []string{"internal/sandbox/account", "internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/sandbox", may: []string{"internal/sandbox/account", "internal/sandbox/execs", "internal/sandbox/files", "internal/sandbox/operation", "internal/sandbox/output", "internal/sandbox/ports", "internal/sandbox/program", "internal/sandbox/system", "internal/wire/init"}},
	{place: "internal/agent/initbin"},
	{place: "internal/agent/images/failure", may: []string{"."}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/images/unpack", may: []string{"internal/agent/images/failure", "internal/safetar"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/images/source", may: []string{".", "internal/agent/destinations", "internal/agent/images/failure"}, third: []string{"github.com/google/go-containerregistry", "github.com/klauspost/compress", "golang.org/x/sys"}},
	{place: "internal/agent/images/layertest", third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/images", may: []string{".", "internal/agent/contract", "internal/agent/destinations", "internal/agent/images/failure", "internal/agent/images/source", "internal/agent/images/unpack", "internal/wire/agent"}, third: []string{"github.com/google/go-containerregistry", "golang.org/x/sys"}},
	{place: "internal/agent/userns", may: []string{"internal/agent/boot"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/boot", third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/journal", may: []string{".", "internal/agent/boot", "internal/agent/userns", "internal/wire/agent"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/contract", may: []string{".", "internal/wire/agent"}},
	{place: "internal/agent/fencing", may: []string{".", "internal/agent/boot", "internal/wire/agent"}},
	{place: "internal/agent/destinations", may: []string{"internal/outbound"}},
	{place: "internal/outbound", third: []string{"golang.org/x/net/http/httpproxy"}},
	{place: "internal/agent/metadata", may: []string{".", "internal/wire/agent"}},
	{place: "internal/agent/devices", may: []string{".", "internal/agent/contract"}, third: []string{"tags.cncf.io/container-device-interface/specs-go", "go.yaml.in/yaml/v3"}},
	{place: "internal/agent/launch", may: []string{".", "internal/agent/contract", "internal/agent/journal", "internal/wire/agent"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/tunnel", third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/inputs", may: []string{".", "api", "internal/agent/contract", "internal/agent/destinations", "internal/agent/journal", "internal/wire/agent"}},
	{place: "internal/agent/outputs", may: []string{".", "internal/agent/contract", "internal/agent/journal", "internal/wire/agent"}},
	{place: "internal/agent/network", may: []string{".", "internal/agent/contract", "internal/agent/destinations"}, third: []string{"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "github.com/google/nftables", "github.com/mdlayher/netlink", "golang.org/x/sys", "golang.org/x/sync"}},
	{place: "internal/agent/cgroup", may: []string{"."}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/initbox", may: []string{".", "internal/agent/contract", "internal/agent/boot", "internal/agent/cgroup", "internal/agent/userns", "internal/wire/agent", "internal/wire/init"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/oci", may: []string{".", "internal/agent/contract", "internal/agent/cgroup", "internal/agent/initbox", "internal/wire/init"}, third: []string{"github.com/opencontainers/runtime-spec", "golang.org/x/sys"}},
	{place: "internal/agent/teardown", may: []string{".", "internal/agent/journal", "internal/agent/cgroup", "internal/agent/initbox", "internal/agent/network", "internal/agent/userns"}},
	{place: "internal/agent/host", may: []string{".", "internal/agent/journal", "internal/agent/teardown", "internal/wire/agent"}},
	{place: "internal/agent/runtimetest", may: []string{".", "internal/testwait", "internal/agent/...", "internal/wire/init", "internal/sandbox"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/rootless", may: []string{".", "internal/agent/contract", "internal/agent/initbox", "internal/agent/userns"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/process", may: []string{".", "internal/agent/contract", "internal/agent/cgroup", "internal/agent/initbox", "internal/wire/init"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent/...", may: []string{".", "internal/agent/contract", "internal/wire/init", "internal/sandbox"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/agent", may: []string{".", "api", "internal/wire/...", "internal/agent/boot", "internal/agent/contract", "internal/agent/destinations", "internal/agent/devices", "internal/agent/fencing", "internal/agent/inputs", "internal/agent/journal", "internal/agent/launch", "internal/agent/metadata", "internal/agent/outputs", "internal/agent/tunnel"}, third: []string{"golang.org/x/sys", "golang.org/x/sync"}},
	{place: "internal/policy", may: []string{".", "api"}, third: []string{"github.com/google/go-containerregistry"}, pure: true},
	{place: "internal/present", may: []string{".", "api", "internal/state", "internal/decide/...", "internal/wire/agent"}, pure: true},
	{place: "internal/explain", may: []string{".", "api", "internal/state", "internal/decide/...", "internal/wire/agent", "internal/present"}, pure: true},
	{place: "internal/problem", may: []string{".", "api"}},
	{place: "internal/claim", may: services},
	{place: "internal/inside", may: services},
	{place: "internal/submit", may: services},
	{place: "internal/operate", may: services},
	{place: "internal/history", may: services, third: []string{"go.etcd.io/bbolt", "github.com/fxamacker/cbor/v2"}},
	{place: "internal/clusterconfig", may: []string{".", "api", "internal/config", "internal/state", "internal/problem"}, third: []string{"golang.org/x/sync"}},
	{place: "internal/socket", may: []string{".", "api", "internal/problem"}, third: []string{"github.com/coder/websocket"}},
	{place: "internal/metrics", may: append([]string{"internal/inside"}, services...), third: []string{"github.com/prometheus/client_golang"}},
	{place: "internal/door", may: append([]string{"internal/conns"}, services...)},
	{place: "internal/images", may: append([]string{"internal/agent/images/source"}, services...)},
	{place: "internal/imagecache", may: []string{".", "internal/agent/destinations", "internal/agent/images/failure", "internal/agent/images/source", "internal/wire/agent"}, third: []string{"github.com/google/go-containerregistry"}},
	{place: "internal/imagearch", may: []string{".", "internal/agent/destinations", "internal/agent/images/source", "internal/wire/agent"}},
	{place: "internal/httpapi/schema", third: []string{"github.com/danielgtaylor/huma/v2"}},
	{place: "internal/httpapi/eventstream", may: []string{".", "api", "internal/state", "internal/present", "internal/problem", "internal/httpapi/schema", "internal/door"}},
	{place: "internal/httpapi/route", may: []string{".", "internal/door", "internal/metrics", "internal/problem"}, third: []string{"github.com/danielgtaylor/huma/v2"}},
	{place: "internal/httpapi/servers", may: []string{".", "api", "internal/state", "internal/config", "internal/door", "internal/metrics", "internal/httpapi/route", "internal/httpapi/schema"}, third: []string{"github.com/danielgtaylor/huma/v2"}},
	{place: "internal/httpapi", may: []string{"internal/httpapi/eventstream", ".", "api", "internal/state", "internal/present", "internal/explain", "internal/problem", "internal/claim", "internal/inside", "internal/submit", "internal/images", "internal/operate", "internal/history", "internal/httpapi/schema", "internal/httpapi/route", "internal/httpapi/servers", "internal/door", "internal/metrics", "internal/socket", "internal/clock", "internal/config", "internal/wire/init"},
		third: []string{"github.com/danielgtaylor/huma/v2", "github.com/coder/websocket"}},
	{place: "internal/compat/...", may: []string{".", "api", "internal/state", "internal/wire/init", "internal/present", "internal/problem", "internal/claim", "internal/inside", "internal/door", "internal/submit", "internal/conns"}, third: []string{"github.com/coder/websocket"}},
	{place: "internal/server", may: []string{".", "api", "internal/..."}, third: []string{"*"}},
	{place: "internal/sim", may: []string{".", "api", "client", "internal/..."}, third: []string{"*"}},
	{place: "cmd/muster-init", may: []string{"internal/sandbox", "internal/wire/init"}},
	{place: "cmd/muster-node", may: []string{".", "api", "internal/outbound", "internal/remote/bridge", "internal/agent", "internal/agent/...", "internal/wire/agent", "internal/version"}, third: []string{"github.com/spf13/cobra", "golang.org/x/sys"}},
	{place: "cmd/muster/internal/term", may: []string{"."}, third: []string{"charm.land/lipgloss/v2", "github.com/charmbracelet/x/ansi", "golang.org/x/term", "golang.org/x/sys"}},
	{place: "cmd/muster/internal/cli", may: []string{".", "api", "client", "internal/specfile", "internal/locate", "internal/version", "cmd/muster/internal/term"}, third: []string{"github.com/spf13/cobra", "github.com/spf13/pflag"}},
	{place: "cmd/muster/internal/clitest", may: []string{"api", "internal/testwait", "cmd/muster/internal/cli"},
		third: []string{"github.com/spf13/cobra", "github.com/coder/websocket", "github.com/creack/pty", "golang.org/x/sys"}},
	// Those that others use come first. Only serve knows the server.
	{place: "cmd/muster/internal/transfer", may: []string{".", "api", "client", "internal/safetar", "cmd/muster/internal/term", "cmd/muster/internal/cli"}, third: []string{"github.com/spf13/cobra", "golang.org/x/sync"}},
	{place: "cmd/muster/internal/inside", may: []string{".", "api", "client", "cmd/muster/internal/term", "cmd/muster/internal/cli"}, third: []string{"github.com/spf13/cobra"}},
	{place: "cmd/muster/internal/jobs", may: []string{".", "api", "client", "internal/specfile", "cmd/muster/internal/term", "cmd/muster/internal/cli", "cmd/muster/internal/transfer", "cmd/muster/internal/inside"},
		third: []string{"github.com/spf13/cobra", "github.com/spf13/pflag", "golang.org/x/sys"}},
	{place: "cmd/muster/internal/runners", may: []string{".", "api", "client", "internal/specfile", "cmd/muster/internal/term", "cmd/muster/internal/cli", "cmd/muster/internal/transfer", "cmd/muster/internal/inside"},
		third: []string{"github.com/spf13/cobra"}},
	{place: "cmd/muster/internal/contexts", may: []string{".", "internal/locate", "cmd/muster/internal/term", "cmd/muster/internal/cli"}, third: []string{"github.com/spf13/cobra"}},
	{place: "cmd/muster/internal/operators", may: []string{".", "api", "client", "cmd/muster/internal/term", "cmd/muster/internal/cli"}, third: []string{"github.com/spf13/cobra"}},
	{place: "cmd/muster/internal/serve", may: []string{".", "api", "client", "internal/blob", "internal/cloud", "internal/cluster", "internal/registry", "internal/config", "internal/server", "internal/raftlog", "internal/specfile", "internal/locate", "internal/version", "cmd/muster/internal/term", "cmd/muster/internal/cli"},
		third: []string{"github.com/spf13/cobra", "golang.org/x/sys"}},
	{place: "cmd/muster", may: []string{".", "api", "client", "cmd/muster/internal/...", "internal/locate", "internal/blob/buckets", "internal/cloud/clouds", "internal/registry/identities", "internal/version"}, third: []string{"github.com/spf13/cobra"}},
	{place: "internal/version"},
	{place: "internal/notice"},
	{place: "internal/serverimage", third: []string{"github.com/google/go-containerregistry"}},
	{place: "internal/programtest"},
	{place: "internal/servertest", may: []string{"client", "internal/locate"}},
	{place: "internal/growthtest"},
	{place: "internal/faults"},
	{place: "internal/imagetest", third: []string{"github.com/google/go-containerregistry", "golang.org/x/sys"}},
	{place: "internal/isolation/probe", may: []string{"internal/sandbox", "internal/wire/init"}, third: []string{"golang.org/x/sys"}},
	{place: "internal/isolation"},
	{place: "e2e/vm"},
	{place: "internal/endtoend"},
	{place: "demo/...", may: []string{".", "api", "client", "internal/locate"}},
	{place: "internal/diagrams", may: []string{"."}},
	{place: "internal/syscalls"},
	{place: "internal/replay", may: []string{".", "api", "internal/state", "internal/decide/place"}},
}

// services are what a package of the service ring may import: no transport, no loop, no sibling. What one needs of a loop or of a
// sibling it declares as a small interface, which internal/server fills in.
var services = []string{".", "api", "internal/state", "internal/decide/...", "internal/present", "internal/explain", "internal/problem", "internal/clock", "internal/policy", "internal/wire/...", "internal/blob"}

// leaves import nothing of this module. All packages but the pure ones may use them: one of them has a clock, the other files.
var leaves = []string{"internal/atomicfile", "internal/fields", "internal/filelock", "internal/wait"}

// notSayable are names that say nothing.
var notSayable = []string{"util", "utils", "common", "helper", "helpers", "types", "structs", "models", "manager", "misc", "shared", "base"}

type source struct {
	dir   string // below the module, slashes
	file  string
	test  bool
	ast   *ast.File
	fset  *token.FileSet
	owner string // package name
	lines int
}

// sources are all files of the module. They are read once for all tests, none of which changes them.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var parsed = sync.OnceValues(func() ([]source, error) {
	var out []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, p, b, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{dir: filepath.ToSlash(filepath.Dir(p)), file: p, test: strings.HasSuffix(p, "_test.go"), ast: f, fset: fset, owner: f.Name.Name,
			lines: bytes.Count(b, []byte("\n"))})
		return nil
	})
	return out, err
})

func matches(pattern, place string) bool {
	if rest, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(place, rest+"/")
	}
	return pattern == place
}

func ruleFor(dir string) *rule {
	for i := range rules {
		if matches(rules[i].place, dir) {
			return &rules[i]
		}
	}
	return nil
}

// crossing says why a package in dir must not import what, or "".
func crossing(r *rule, what string) string {
	if what == module || strings.HasPrefix(what, module+"/") {
		place := strings.TrimPrefix(strings.TrimPrefix(what, module), "/")
		if place == "" {
			place = "."
		}
		if slices.ContainsFunc(r.may, func(p string) bool { return matches(p, place) }) || !r.pure && slices.Contains(leaves, place) {
			return ""
		}
		return fmt.Sprintf("the ring of %s does not reach %s", r.place, place)
	}
	if first, _, _ := strings.Cut(what, "/"); !strings.Contains(first, ".") {
		return "" // standard library
	}
	if slices.ContainsFunc(r.third, func(m string) bool { return m == "*" || what == m || strings.HasPrefix(what, m+"/") }) {
		return ""
	}
	return fmt.Sprintf("%s may not use %s", r.place, what)
}

func TestRings(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		r := ruleFor(s.dir)
		if r == nil {
			t.Errorf("%s: no ring for %s: add it to the rules in arch_test.go, and to ARCHITECTURE.md", s.file, s.dir)
			continue
		}
		for _, im := range s.ast.Imports {
			what, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := crossing(r, what); why != "" && !isSelf(s.dir, what) {
				t.Errorf("%s imports %s: %s", s.file, what, why)
			}
		}
	}
}

func isSelf(dir, what string) bool { return what == path.Join(module, dir) }

// clouds are the drivers of which a lean program has none, since their libraries are large, and the
// package that knows them all.
var clouds = []string{"internal/cloud/azure", "internal/cloud/clouds", "internal/cloud/ec2", "internal/cloud/gce", "internal/cloud/hetzner", "internal/cloud/openstack", "internal/cloud/qemu", "internal/registry/identities"}

// Nothing brings a cloud's library into nodes, nor into a lean program: only internal/cloud/clouds
// imports drivers, and what imports that has the build constraint !lean.
func TestDriversOfCloudsAreNotInNodesNorInLeanPrograms(t *testing.T) {
	for _, driver := range clouds {
		if crossing(ruleFor("cmd/muster-node"), module+"/"+driver) == "" {
			t.Errorf("cmd/muster-node may import %s", driver)
		}
		for _, s := range sources(t) {
			if s.test || strings.HasPrefix(s.dir+"/", driver+"/") || s.dir == "internal/cloud/clouds" {
				continue
			}
			for _, im := range s.ast.Imports {
				if what, _ := strconv.Unquote(im.Path.Value); what == module+"/"+driver && !notLean(s) {
					t.Errorf("%s imports %s and is in lean programs", s.file, driver)
				}
			}
		}
	}
}

// notLean reports whether a file is left out of lean programs.
func notLean(s source) bool {
	for _, group := range s.ast.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build ") && strings.Contains(c.Text, "!lean") {
				return true
			}
		}
	}
	return false
}

// A loop must not know another: what they share is the state.
func TestLoopsDoNotKnowEachOther(t *testing.T) {
	r := ruleFor("internal/control/broker")
	if crossing(r, module+"/internal/control/fleet") == "" {
		t.Error("control siblings may import each other")
	}
	if crossing(ruleFor("internal/decide/place"), module+"/internal/decide/size") == "" {
		t.Error("decide siblings may import each other")
	}
	if crossing(ruleFor("internal/state"), module+"/internal/raftlog") == "" {
		t.Error("state may import raftlog")
	}
}

// A service must not know who asks it, what carries out its facts, or another service.
func TestServicesKnowNeitherTransportsNorLoops(t *testing.T) {
	all := []string{"internal/claim", "internal/inside", "internal/submit", "internal/operate", "internal/history", "internal/door"}
	for _, service := range all {
		r := ruleFor(service)
		for _, other := range append([]string{"internal/httpapi", "internal/compat/poseidon", "internal/control/link", "internal/server"}, all...) {
			if other != service && crossing(r, module+"/"+other) == "" {
				t.Errorf("%s may import %s", service, other)
			}
		}
	}
	if crossing(ruleFor("internal/compat/poseidon"), module+"/internal/httpapi") == "" {
		t.Error("one transport may borrow from another")
	}
}

func TestLeavesAreForImpurePackagesOnly(t *testing.T) {
	for _, leaf := range leaves {
		if r := ruleFor(leaf); r.may != nil || r.third != nil {
			t.Errorf("%s is a leaf, and may import something", leaf)
		}
		if crossing(ruleFor("internal/control/fleet"), module+"/"+leaf) != "" {
			t.Errorf("a loop may not use %s", leaf)
		}
		for _, pure := range []string{".", "api", "internal/state", "internal/decide/place", "internal/policy"} {
			if crossing(ruleFor(pure), module+"/"+leaf) == "" {
				t.Errorf("%s is pure, and may use %s", pure, leaf)
			}
		}
	}
	if crossing(ruleFor("internal/agent"), module+"/internal/testwait") == "" {
		t.Error("product code may use internal/testwait")
	}
}

// impure are the ways out of a pure function.
var impure = map[string][]string{
	"time":         {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"os":           {"*"},
	"os/exec":      {"*"},
	"net":          {"Dial", "DialTimeout", "Listen", "ListenPacket", "LookupHost", "LookupIP", "LookupAddr", "Interfaces", "InterfaceAddrs"},
	"net/http":     {"*"},
	"math/rand":    {"*"},
	"math/rand/v2": {"*"},
	"crypto/rand":  {"*"},
	"syscall":      {"*"},
	"io/ioutil":    {"*"},
}

func TestPureRings(t *testing.T) {
	for _, s := range sources(t) {
		r := ruleFor(s.dir)
		if s.test || r == nil || !r.pure {
			continue
		}
		names := map[string]string{}
		for _, im := range s.ast.Imports {
			what, _ := strconv.Unquote(im.Path.Value)
			bad, is := impure[what]
			if is && bad[0] == "*" {
				t.Errorf("%s imports %s, and is pure", s.file, what)
			}
			if is {
				name := path.Base(what)
				if im.Name != nil {
					name = im.Name.Name
				}
				names[name] = what
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a go statement in a pure ring", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impure[names[x.Name]], n.Sel.Name) {
					t.Errorf("%s: %s.%s in a pure ring", s.fset.Position(n.Pos()), x.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
}

func TestPackagesAreDocumentedAndSayable(t *testing.T) {
	docs, names := map[string]string{}, map[string]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		names[s.dir] = s.owner
		if s.ast.Doc != nil {
			docs[s.dir] += s.ast.Doc.Text()
		}
	}
	for dir, name := range names {
		if slices.Contains(notSayable, name) || slices.Contains(notSayable, path.Base(dir)) {
			t.Errorf("%s: %q says nothing", dir, name)
		}
		if len(docs[dir]) < 80 {
			t.Errorf("%s: the package comment should say what it does, what it must never do, and who calls it", dir)
		}
	}
}

// Package variables that change are hidden arguments; init functions run before anybody asked.
func TestNoInitFunctions(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: an init function", s.fset.Position(f.Pos()))
			}
		}
	}
}

// The longest file and function that the taste allows, with some room.
func TestFilesAndFunctionsStayShort(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		if s.lines > 650 {
			t.Errorf("%s has %d lines: the design wants a look", s.file, s.lines)
		}
		for _, d := range s.ast.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			if n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line; n > 100 {
				t.Errorf("%s: %s has %d lines: the design wants a look", s.fset.Position(f.Pos()), f.Name.Name, n)
			}
		}
	}
}

// Loops take one clock, the log's (internal/clock): one that made a moment of the system's would come too late, or never, after
// that was set back. Durations are measured by time.Since and timers, which no step moves.
func TestLoopsTakeTheLogsClock(t *testing.T) {
	// What a node is asked about the system's clock is about that one. Parts that only fake or try something have no deadlines in the log.
	allowed := []string{"internal/control/link/prove.go", "internal/control/link/linktest/", "internal/control/check/"}
	err := filepath.WalkDir("internal/control", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			slices.ContainsFunc(allowed, func(a string) bool { return strings.HasPrefix(path, a) }) {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), "muster.At(time.Now()") {
			t.Errorf("%s takes the system's clock; its Config has a Clock", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// verbLiteral is what the name of a change looks like.
var verbLiteral = regexp.MustCompile(`^"(node|job|alloc|claim|environment|pool|namespace|config)\.[a-z-]*"$`)

// Loops and decisions name changes by the constants of internal/state/verb.go, so that the compiler finds who depends on one.
func TestVerbsAreConstants(t *testing.T) {
	for _, s := range sources(t) {
		place := filepath.ToSlash(s.file)
		inside := strings.HasPrefix(place, "internal/state/") || strings.HasPrefix(place, "internal/control/") || strings.HasPrefix(place, "internal/decide/")
		if s.test || !inside || place == "internal/state/verb.go" {
			continue
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && verbLiteral.MatchString(lit.Value) {
				t.Errorf("%s: %s is written out", s.fset.Position(lit.Pos()), lit.Value)
			}
			return true
		})
	}
}

// A package fits in a head up to 4,000 lines, a type up to 60 methods. A larger package has its reason in
// ARCHITECTURE.md, "Packages over 4,000 lines".
func TestPackagesAndTypesStaySmall(t *testing.T) {
	const mostLines, mostMethods = 4000, 60
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, reasons, _ := strings.Cut(string(text), "\n## Packages over 4,000 lines\n")
	reasons, _, _ = strings.Cut(reasons, "\n## ")
	lines, methods := map[string]int{}, map[string]int{} // by package; by package and type
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		lines[s.dir] += s.lines
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && receiver(f) != "" {
				methods[s.dir+"."+receiver(f)]++
			}
		}
	}
	for name, n := range lines {
		if explained := strings.Contains(reasons, "\n- **`"+name+"`**"); n > mostLines && !explained {
			t.Errorf("%s has %d lines, and may have %d unless ARCHITECTURE.md says why", name, n, mostLines)
		} else if n <= mostLines && explained {
			t.Errorf("%s has no more than %d lines now: ARCHITECTURE.md need not say why any more", name, mostLines)
		}
	}
	for name, n := range methods {
		if n > mostMethods {
			t.Errorf("%s has %d methods, and may have %d", name, n, mostMethods)
		}
	}
}
