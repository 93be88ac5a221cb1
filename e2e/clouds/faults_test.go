package clouds

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/ec2/ec2test"
)

// fault is something that goes wrong with EC2, whose stand-in can play all of them.
type fault struct {
	name, script string
	// during is what happens while three jobs wait or run; nil: they just end.
	during func(w *world)
	// zone is the only one in which machines may have been made; empty: any.
	zone string
	// subnet is one in which none may have been made.
	subnet string
}

// TestFaults has the cloud fail in one way at a time: in the end each job has ended once, and nothing is
// left.
func TestFaults(t *testing.T) {
	needFull(t)
	for _, f := range []fault{
		{name: "a zone is out", script: "create: capacity zone=eu-central-1a", zone: "eu-central-1b"},
		{name: "a subnet is full", script: "subnet: free 0 id=subnet-0a", subnet: "subnet-0a"},
		{name: "lists lag", script: "list: late 0s..20s\nlist: tagless 0s..10s"},
		{name: "answers are lost", script: "create: lost before 20%\ncreate: lost after 30%\ncall: lost before 5%"},
		{name: "instances fail", script: "instance: fails Server.InternalError after=1s n%2=1"},
		{name: "volumes stay", script: "instance: leaves"},
		{name: "the clock is off", script: "account: clock 16m", during: (*world).clock},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			c := openEC2(t, f.script)
			w := serve(t, c, "1s")
			names := []string{"a", "b", "c"}
			for _, name := range names {
				if err := w.submit(name, 1, "true", "--cpu", "1.5"); err != nil {
					t.Fatal(err)
				}
			}
			if f.during != nil {
				f.during(w)
			}
			w.ended(names...)
			if f.name == "volumes stay" {
				w.volumesStay()
				return
			}
			w.empty()
			made := w.c.made()
			if len(made) == 0 {
				t.Error("nothing was made")
			}
			for _, m := range made {
				if f.zone != "" && m.Zone != f.zone || f.subnet != "" && m.Subnet == f.subnet {
					t.Errorf("%s was made in zone %s, subnet %s", m.ID, m.Zone, m.Subnet)
				}
			}
		})
	}
}

// clock: EC2 refuses all calls because of their time until the clocks agree, and the operator is told.
func (w *world) clock() {
	w.t.Helper()
	w.Until("the operator sees that the clock is wrong", func() bool {
		out, _ := w.Run("pool", "show", "main")
		return strings.Contains(out, "RequestExpired")
	})
	if made := w.c.made(); len(made) > 0 {
		w.t.Errorf("%d instances were made", len(made))
	}
	if err := w.c.play(""); err != nil {
		w.t.Fatal(err)
	}
	w.succeeds("pool", "resume", "main", "--reason", "the clock is right")
}

// volumesStay: a volume that outlives its instance is young, and may be somebody's for a while; it is
// shown, and is all that is left.
func (w *world) volumesStay() {
	w.t.Helper()
	var b books
	w.Until("all machines are gone", func() bool {
		b = w.c.books(w.t)
		return len(b.machines)+len(b.hosts) == 0
	})
	if len(b.leftovers) == 0 {
		w.t.Error("no volume has stayed")
	}
	w.tokens(b)
}

// Two drivers with one owner beside one another, as after a server was replaced: no token is used
// twice, and neither ends a machine that the other has made.
func TestTwoDriversOfOneOwner(t *testing.T) {
	needFull(t)
	t.Parallel()
	c := openEC2(t, "")
	one := c.provider
	c.provider = func(name, api string) string { return one(name, api) + one("twin", api) }
	c.pools = "- {name: other, provider: twin, max: 4, grace: 5s, boot_timeout: 1m, idle_timeout: 1s, price_factor: 4}\n"
	w := serve(t, c, "1s")
	var names []string
	for i := range 4 {
		for _, pool := range []string{"main", "other"} {
			name := fmt.Sprintf("%s%d", pool, i)
			names = append(names, name)
			// Long enough that lists of both drivers show the machines of both.
			if err := w.submit(name, 1, "sleep 6", "--cpu", "1.5", "--constraint", "pool="+pool); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.ended(names...)
	for _, name := range names {
		if allocs := w.allocs(name); len(allocs) != 1 {
			t.Errorf("job %s has %d attempts: a machine was taken away from it", name, len(allocs))
		}
	}
	w.empty()
}

// Credentials rotate while jobs run: a program hands them out with a time at which they end, and the
// cloud takes the new ones only from then on.
func TestCredentialsRotate(t *testing.T) {
	needFull(t)
	t.Parallel()
	c := openEC2(t, "")
	keys := ec2test.Default().Keys
	dir := t.TempDir()
	now := filepath.Join(dir, "key")
	use := func(k ec2test.Key, until time.Time) {
		t.Helper()
		text := fmt.Sprintf(`{"Version": 1, "AccessKeyId": %q, "SecretAccessKey": %q, "Expiration": %q}`, k.ID, k.Secret, until.UTC().Format(time.RFC3339))
		// Replaced whole: the program may run at any time.
		if err := os.WriteFile(now+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(now+".new", now); err != nil {
			t.Fatal(err)
		}
	}
	use(keys[0], time.Now().Add(5*time.Second))
	file := writeFile(t, "[default]\ncredential_process = /bin/cat "+now+"\n")
	c.provider = func(name, api string) string { return ec2Provider(name, api, file) }
	w := serve(t, c, "1s")
	if err := w.submit("before", 1, "true"); err != nil {
		t.Fatal(err)
	}
	w.ended("before")
	use(keys[1], time.Now().Add(time.Hour))
	if err := c.play("account: rotate"); err != nil {
		t.Fatal(err)
	}
	if err := w.submit("after", 1, "true"); err != nil {
		t.Fatal(err)
	}
	w.ended("after")
	w.empty()
}

// 64 machines are wanted while EC2 lets through half or a fifth of the calls that it allows: it is not
// asked in vain for ever, all are made, each once, and all are gone when the job is stopped.
func TestStorm(t *testing.T) {
	needFull(t)
	const wanted = 64
	for _, share := range []string{"0.5", "0.2"} {
		t.Run(share, func(t *testing.T) {
			t.Parallel()
			c := openAccount(t, "account: rates "+share)
			w := serve(t, c, "1s")
			if err := w.submit("storm", wanted, "true", "--cpu", "1.5"); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			w.Until("all are made", func() bool { return len(w.c.books(t).machines) == wanted })
			t.Logf("made in %s", time.Since(began).Round(100*time.Millisecond))
			w.succeeds("job", "stop", "storm")
			w.empty()
			if n := len(w.c.made()); n != wanted {
				t.Errorf("%d machines were made for %d", n, wanted)
			}
		})
	}
}

// openAccount is EC2 without machines behind its instances: for what many instances do to the API and
// the server.
func openAccount(t *testing.T, script string) *stand {
	t.Helper()
	s, err := ec2test.New(ec2test.Config{Script: script})
	if err != nil {
		t.Fatal(err)
	}
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	c := ec2Stand(t, s, nil, api.URL)
	c.most, c.boot = 64, "3m"
	return c
}
