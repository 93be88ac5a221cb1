// Package openstack runs the driver of OpenStack against a real Nova: its API, scheduler, conductor
// and placement, over hypervisors that only pretend. README.md says what that needs.
package openstack

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/cloud/openstack"
	"github.com/musterhq/muster/internal/cloud/openstack/openstacktest"
)

// nova is a Nova that runs, and an identity service whose catalog has it.
type nova struct {
	file, image, network string
}

// start starts Nova, which takes some seconds.
func start(t *testing.T) *nova {
	t.Helper()
	paste := os.Getenv("API_PASTE")
	if paste == "" {
		t.Skip("API_PASTE is not set: README.md says how to get Nova")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	_ = l.Close()
	python := os.Getenv("NOVA_PYTHON")
	if python == "" {
		python = "python3"
	}
	c := exec.Command(python, "serve.py")
	c.Env = append(os.Environ(), "PORT="+port)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs strings.Builder
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	n := &nova{}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "ready" {
			n.image, n.network = f[1], f[2]
			break
		}
	}
	if n.image == "" {
		_ = c.Wait()
		t.Fatalf("Nova does not start:\n%s", errs.String())
	}
	go func() {
		for lines.Scan() { // so that it never waits for its reader
		}
	}()
	at := map[string]string{"compute": fmt.Sprintf("http://127.0.0.1:%s/v2.1", port)}
	n.file = openstacktest.New(t, openstacktest.Options{Services: at}).CloudsFile()
	return n
}

// provider is the driver without the console, which pretended hypervisors fill with other text.
type provider struct {
	cloud.Provider
	cloud.Bootable
	cloud.Consistent
	cloud.Sweeper
	cloud.Resolver
	cloud.QuotaReader
	cloud.Suspender
	cloud.Stopper
}

func (n *nova) open(t *testing.T, owner string) *openstack.Provider {
	t.Helper()
	p, err := openstack.New(openstack.Config{Name: "os", Owner: owner, Cloud: openstacktest.Cloud, CloudsFile: n.file, Network: n.network, Image: n.image,
		Prices: driver.Prices{Table: map[string]float64{"m1.tiny": 0.01, "m1.xlarge": 0.16}}, Access: cloud.Access{KeyFile: "/key"}, Poll: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Open is cloudtest.Cloud's.
func (n *nova) Open(t *testing.T, owner string) cloud.Provider {
	p := n.open(t, owner)
	return provider{p, p, p, p, p, p, p, p}
}

func TestConformance(t *testing.T) {
	n := start(t)
	cloudtest.Run(t, time.Minute, func(*testing.T) cloudtest.Cloud { return n })
}

// TestQuotaAndNoHost: what Nova refuses at once, and what it accepts and cannot place.
func TestQuotaAndNoHost(t *testing.T) {
	n := start(t)
	p := n.open(t, "o")
	intent := func(i int, flavor string) cloud.Intent {
		return cloud.Intent{Token: muster.Token(fmt.Sprintf("t%d-%s", i, flavor)), Node: "n", Pool: "main", Offering: muster.OfferingName(flavor), Zone: "nova", Market: muster.OnDemand}
	}
	quotas, err := p.Quotas(t.Context())
	if err != nil || len(quotas) != 1 {
		t.Fatalf("%+v, %v", quotas, err)
	}
	// Cores or servers run out first; the pretended hosts run out of memory before either.
	var kinds = map[muster.FaultKind]int{}
	made := 0
	for _, flavor := range []string{"m1.xlarge", "m1.tiny"} {
		for i := range 12 {
			got := p.Create(t.Context(), []cloud.Intent{intent(i, flavor)})[0]
			switch {
			case got.Err != nil:
				kinds[muster.KindOf(got.Err)]++
			case got.Instance.Failed != nil:
				kinds[got.Instance.Failed.Kind]++
				fallthrough
			default:
				made++
			}
		}
	}
	if kinds[muster.FaultQuota] == 0 || kinds[muster.FaultCapacity] == 0 || made == 0 {
		t.Errorf("%d made, and %v", made, kinds)
	}
	t.Logf("%d made, refusals by kind %v, quota %+v", made, kinds, quotas)
	// All of them are listed, with their zone and flavor, and go away again.
	l, err := p.List(t.Context(), "")
	if err != nil || !l.Complete || len(l.Instances) != made {
		t.Fatalf("%d listed, complete %v, %v", len(l.Instances), l.Complete, err)
	}
	var ids []muster.InstanceID
	for _, i := range l.Instances {
		if i.Zone != "nova" || i.Offering == "" || i.Tags.Owner != "o" {
			t.Errorf("%+v", i)
		}
		ids = append(ids, i.ID)
	}
	for i, err := range p.Destroy(t.Context(), ids) {
		if err != nil {
			t.Errorf("%s: %v", ids[i], err)
		}
	}
}
