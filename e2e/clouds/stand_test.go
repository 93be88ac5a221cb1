package clouds

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/ec2/ec2test"
	"github.com/musterhq/muster/internal/cloud/hetzner/hetznertest"
	"github.com/musterhq/muster/internal/cloud/standin/netns"
)

// cloud is a row of the scenario's table.
type cloud struct {
	name string
	// open starts the cloud, with a script in its own language that plays from the start; empty: none.
	open func(t *testing.T, script string) *stand
	// short: it is part of the short form. brief: it is so with fewer jobs, and without the breaker, which
	// takes long and asks no more of a driver than the other steps do.
	short, brief bool
	// alone: its machines take all processors that there are, and nothing else runs beside it.
	alone bool
}

// stand is a cloud that was started.
type stand struct {
	// api is the address of its API; empty: no calls of the server's pass by, and it is killed between
	// jobs.
	api string
	// provider is the lines of the configuration for a provider of that name, whose API has an
	// address.
	provider func(name, api string) string
	// env is what the server has in its environment for that; nil: nothing.
	env func(api string) []string
	// changes selects the calls that make, change or end something.
	changes func(r *http.Request, body []byte) bool
	// take has the cloud take a spot machine back, after a notice and a time; nil: it has one market.
	take func(id string, in time.Duration) bool
	// play gives it another script; nil: it has none.
	play func(script string) error
	// made are all instances that EC2's stand-in ever made; nil: it is another cloud.
	made func() []ec2test.Machine
	// locks are what keeps two servers from making the same machine; nil: the cloud's names do.
	locks func() []string
	// populate puts instances of an owner and a pool into EC2's books.
	populate func(owner, pool string, n int)
	// pools are further lines of the configuration for pools. most is how many nodes the first has, boot
	// how long one may take to come, grace how long one may be out of contact; zero: 8, a minute, and
	// five seconds.
	pools, boot, grace string
	most               int
	// pool is further fields of the first pool, after a comma.
	pool string
	// idle is how long a machine without work stays; breakers how many lose contact at once in the
	// scenario, jobCPU the cores of each of the 20 jobs. Zero: a second, 5, and 1.
	idle, jobCPU string
	breakers     int
	// placed gets the server if the cloud's files are in the server's data directory; nil otherwise.
	placed func(w *world)
	// oci: its machines are real ones that run containers, and take minutes to come.
	oci bool
	// creating are the steps of a create, of which the server is killed at a drawn one; nil: it is
	// killed at calls.
	creating []moment

	// cut takes a machine off the network, or puts it back.
	cut func(t *testing.T, id string, off bool)
	// lists is how often EC2's stand-in was asked for its instances; nil: it is another cloud.
	lists func() int
	// books are what the cloud itself says that there is.
	books func(t testing.TB) books
}

// moment is a state of the cloud that shows how far a call has come.
type moment struct {
	what string
	now  func() bool
}

// books are what a cloud has, and had, of one owner.
type books struct {
	// machines are those that are there, leftovers what else is paid for, by id.
	machines, leftovers []string
	// hosts are what runs on this host for machines.
	hosts []string
	// byToken are all machines ever made.
	byToken map[string][]string
}

func (b *books) empty() bool { return len(b.machines)+len(b.leftovers)+len(b.hosts) == 0 }

// machines makes the machines behind a stand-in.
func machines(t *testing.T, notice func(id string) (time.Time, bool)) *netns.Machines {
	t.Helper()
	return machinesOf(t, netns.Config{Notice: notice})
}

// machinesOf makes machines that have more of their own.
func machinesOf(t *testing.T, cfg netns.Config) *netns.Machines {
	t.Helper()
	network, release, err := netns.FreeNet()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dir, cfg.Net, cfg.Image = t.TempDir(), network, image(t)
	m := netns.New(cfg)
	t.Cleanup(func() {
		m.Close()
		release()
	})
	return m
}

// image is what machines have from the start: muster-node, so that the server has to put it nowhere,
// which takes most of the time of a boot here. In the full form the scenario's machines have nothing.
func image(t *testing.T) string {
	t.Helper()
	if *full && strings.HasPrefix(t.Name(), "TestScenario/") {
		return ""
	}
	program, err := os.ReadFile("../../bin/muster-node")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", fmt.Sprintf("muster-node-%x", sha256.Sum256(program))), program, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func cutter(m *netns.Machines) func(*testing.T, string, bool) {
	return func(t *testing.T, id string, off bool) {
		t.Helper()
		if err := m.Cut(id, off); err != nil {
			t.Fatal(err)
		}
	}
}

// noShutdown is how a machine in namespaces ends by itself: its first process. A poweroff would be this
// host's.
const noShutdown = "kill 1"

func writeFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// ec2Credentials is a credentials file with a key of the stand-in's.
func ec2Credentials(k ec2test.Key) string {
	return fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", k.ID, k.Secret)
}

// openEC2 is EC2 in one region with two zones, whose machines are namespaces with an SSH server and a
// metadata service.
func openEC2(t *testing.T, script string) *stand {
	t.Helper()
	var s *ec2test.Server
	m := machines(t, func(id string) (time.Time, bool) { return s.Notice(id) })
	s, err := ec2test.New(ec2test.Config{Machines: m, Script: script})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	c := ec2Stand(t, s, m.Running, api.URL)
	c.cut = cutter(m)
	return c
}

// ec2Stand is an account of EC2 that was started. hosts are what runs on this host for its instances.
func ec2Stand(t testing.TB, s *ec2test.Server, hosts func() []string, api string) *stand {
	credentials := writeFile(t, ec2Credentials(ec2test.Default().Keys[0]))
	return &stand{
		api: api, take: s.Take, play: s.Play, made: s.Made, populate: s.Populate,
		lists:    func() int { return s.Calls("DescribeInstances") },
		provider: func(name, api string) string { return ec2Provider(name, api, credentials) },
		changes: func(_ *http.Request, body []byte) bool {
			form, err := url.ParseQuery(string(body))
			return err == nil && form.Get("Action") != "" && !strings.HasPrefix(form.Get("Action"), "Describe")
		},
		books: func(testing.TB) books {
			b := books{byToken: map[string][]string{}}
			if hosts != nil {
				b.hosts = hosts()
			}
			owner := ""
			for _, one := range s.Made() {
				owner = one.Tags["muster-owner"]
				token := one.Tags["muster-token"]
				if list := strings.Split(one.Tags["muster-tokens"], "/"); token == "" && one.Index < len(list) {
					// Instances of one launch of several have the tokens of all, in order.
					token = list[one.Index]
				}
				b.byToken[token] = append(b.byToken[token], one.ID)
			}
			for _, id := range s.Left(owner) {
				if strings.HasPrefix(id, "i-") {
					b.machines = append(b.machines, id)
				} else {
					b.leftovers = append(b.leftovers, id)
				}
			}
			return b
		},
	}
}

func ec2Provider(name, api, credentials string) string {
	return fmt.Sprintf(`- name: %s
  type: ec2
  region: eu-central-1
  subnets: [subnet-0a, subnet-0b]
  security_groups: [sg-0c]
  types: [m7i.large]
  markets: [on-demand, spot]
  endpoint: %s
  credentials: {file: %s}
  ssh: {user: root, shutdown: %q}
  boot_probe: {command: "true"}
`, name, api, credentials, noShutdown)
}

// openHetzner is a project of Hetzner Cloud with two locations. It has one market and no notices.
func openHetzner(t *testing.T, script string) *stand {
	t.Helper()
	if script != "" {
		t.Fatal("the stand-in of Hetzner has no scripts")
	}
	m := machines(t, nil)
	c := hetznertest.New(t, hetznertest.Options{Machines: m, Limit: 3600, Refill: 1})
	token := writeFile(t, hetznertest.Token+"\n")
	return &stand{
		api: c.URL, cut: cutter(m),
		provider: func(name, api string) string {
			return fmt.Sprintf(`- name: %s
  type: hetzner
  token_file: %s
  locations: [fsn1, nbg1]
  types: [cpx11]
  network: nodes
  endpoint: %s
  rates: {read: 5, create: 5, destroy: 5}
  ssh: {user: root}
  boot_probe: {command: "true"}
`, name, token, api)
		},
		changes: func(r *http.Request, _ []byte) bool { return r.Method != http.MethodGet },
		books: func(t testing.TB) books {
			b := books{byToken: map[string][]string{}, hosts: m.Running()}
			b.machines, b.leftovers, _ = c.Books()
			// The ids, and not the names, are what others call a machine.
			there := map[string]bool{}
			for _, name := range b.machines {
				there[name] = true
			}
			b.machines = nil
			for _, s := range c.Ever() {
				token := s.Labels["muster-token"]
				b.byToken[token] = append(b.byToken[token], strconv.FormatInt(s.ID, 10))
				if there[s.Name] {
					b.machines = append(b.machines, strconv.FormatInt(s.ID, 10))
				}
			}
			return b
		},
	}
}
