package reach

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/state"
)

// An agent gets its network settings in a file that only its user reads: the command lines of a
// host are for everybody there.
func TestAgentIsToldItsNetwork(t *testing.T) {
	r := newRig(t)
	const settings = `{"proxy":"http://anna:s3cret@proxy.invalid:3128","field":"network.proxy"}`
	r.reach.cfg.Network = func(n *state.Node) ([]byte, error) { return []byte(settings), nil }
	r.start()
	r.serving()
	file := filepath.Join(r.dir(), "network.json")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != settings {
		t.Errorf("%q, %v", b, err)
	}
	record, err := journal.ReadRecord(r.dir())
	if err != nil {
		t.Fatal(err)
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", record.Pid))
	if err != nil || !strings.Contains(string(line), "--network\x00"+file) || strings.Contains(string(line), "s3cret") {
		t.Errorf("%q, %v", line, err)
	}
}

// Without its settings no agent starts: it would fail later, and nobody would know why.
func TestNetworkThatCannotBeRead(t *testing.T) {
	r := newRig(t)
	r.reach.cfg.Network = func(*state.Node) ([]byte, error) {
		return nil, muster.Faultf(muster.FaultInvalid, "network.ca_file: missing")
	}
	if err := r.reach.StartAgent(t.Context(), r.node); !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "network.ca_file") {
		t.Errorf("%v", err)
	}
}
