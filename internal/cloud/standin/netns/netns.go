// Package netns makes the machines behind a stand-in of a cloud from network namespaces: each has
// an OpenSSH server with the keys of its user data, processes of its own, and a metadata service.
//
// It needs root, iproute2, util-linux and openssh-server, and serves tests only. Its machines share
// the host's file system, so they show nothing about images.
package netns

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Config is what machines have in common.
type Config struct {
	// Dir is where machines keep their files. It is not below /root, where each has a home of its own.
	Dir string
	// Net is the first two numbers of their addresses, as 10.214. Two users on one host need two:
	// FreeNet finds one that no other has.
	Net string
	// Image is a directory whose files are in each machine's /var/lib/muster from the start, as in an
	// image that an operator has built; empty: none. It must be in the file system of Dir.
	Image string
	// Service is whose metadata service machines have: EC2, GCE or Azure; empty: EC2.
	Service Service
	// User is a login user that machines have beside root; empty: none. It is root under another name,
	// for clouds that make no user root, and its sudo runs what it is given: this host may have none.
	User string
	// Notice says when an instance will be taken; nil: never.
	Notice func(id string) (at time.Time, noticed bool)
	// Rebalance says since when an instance is at a higher risk of being taken; nil: never. EC2 sends
	// it before the notice, after it, or without one.
	Rebalance func(id string) (since time.Time, atRisk bool)
}

// Networks that FreeNet chooses from.
const firstNet, lastNet = 220, 249

// FreeNet returns a Config.Net that no other test of this host uses, and what gives it back. The
// kernel gives back a lock whose process is gone, so a test that was killed keeps no network.
func FreeNet() (net string, release func(), err error) {
	for n := firstNet; n <= lastNet; n++ {
		f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("netns-10.%d.lock", n)), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", nil, err
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			_ = f.Close()
			continue
		}
		net = fmt.Sprintf("10.%d", n)
		sweep(net)
		return net, func() { _ = f.Close() }, nil
	}
	return "", nil, fmt.Errorf("netns: all networks from 10.%d to 10.%d are in use", firstNet, lastNet)
}

// sweep removes machines that a test left which was killed: their network is this process's now.
func sweep(net string) {
	left, _ := filepath.Glob("/run/netns/" + prefixOf(net) + "*")
	for _, path := range left {
		name := filepath.Base(path)
		pids, _ := exec.Command("ip", "netns", "pids", name).Output()
		for _, pid := range strings.Fields(string(pids)) {
			_ = exec.Command("kill", "-9", pid).Run()
		}
		_ = ip("link", "delete", name)
		_ = ip("netns", "delete", name)
	}
}

// prefixOf begins the names of a network's links and namespaces. A name of a link has at most 15
// characters, so the id of an instance cannot be part of it.
func prefixOf(net string) string {
	_, last, _ := strings.Cut(net, ".")
	return "nv" + last + "-"
}

// Machines are machines by the ids of their instances.
type Machines struct {
	cfg Config

	mu  sync.Mutex
	all map[string]*machine
	n   int
}

// machine is one namespace and its first process. The namespace is called by its link and not by the
// instance's id: each stand-in counts ids from the start, and namespaces are the host's.
type machine struct {
	id, dir, link string
	number        int
	process       *exec.Cmd
	gone          chan struct{}
	server        *http.Server
	stop          sync.Once
}

// New makes the set. Close ends what it made.
func New(cfg Config) *Machines {
	return &Machines{cfg: cfg, all: map[string]*machine{}}
}

// maxMachines is how many links of four addresses fit below Config.Net in one number.
const maxMachines = 250

// Start makes the machine of an instance that was launched alone. A machine that was stopped is made
// again.
func (m *Machines) Start(id string, document []byte) (address string, err error) {
	return m.StartInLaunch(id, 0, document)
}

// StartInLaunch is Start for an instance of a launch of several, which share one document: index is its
// place in the launch, from 0.
func (m *Machines) StartInLaunch(id string, index int, document []byte) (address string, err error) {
	data, err := readUserData(document, index)
	if err != nil {
		return "", err
	}
	// A machine of that id may be left from before, as after a stop and a start of its instance.
	m.PowerOff(id)
	m.mu.Lock()
	if m.n >= maxMachines {
		m.mu.Unlock()
		return "", fmt.Errorf("netns: %d machines were made, and there may be no more", m.n)
	}
	// Numbers are not used again, although machines go: a late packet of one must not reach another.
	m.n++
	one := &machine{id: id, number: m.n, dir: filepath.Join(m.cfg.Dir, id), link: fmt.Sprintf("%s%d", prefixOf(m.cfg.Net), m.n), gone: make(chan struct{})}
	m.mu.Unlock()
	address = fmt.Sprintf("%s.%d.2", m.cfg.Net, one.number)
	if err := one.start(m.cfg, data, address); err != nil {
		one.end()
		_ = os.RemoveAll(one.dir)
		return "", err
	}
	m.mu.Lock()
	m.all[id] = one
	m.mu.Unlock()
	return address, nil
}

// Stop ends a machine and all that runs on it, and removes its files. Safe to repeat.
func (m *Machines) Stop(id string) {
	m.PowerOff(id)
	_ = os.RemoveAll(filepath.Join(m.cfg.Dir, id))
}

// PowerOff ends a machine and all that runs on it. Its files stay, with the host key that it has by then, for
// the next Start. Safe to repeat.
func (m *Machines) PowerOff(id string) {
	m.mu.Lock()
	one := m.all[id]
	delete(m.all, id)
	m.mu.Unlock()
	if one != nil {
		one.end()
	}
}

// State reports whether the machine runs.
func (m *Machines) State(id string) (running bool) {
	m.mu.Lock()
	one := m.all[id]
	m.mu.Unlock()
	if one == nil {
		return false
	}
	select {
	case <-one.gone:
		return false
	default:
		return true
	}
}

// Running are the ids of the instances whose machines have not been ended.
func (m *Machines) Running() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []string
	for id := range m.all {
		ids = append(ids, id)
	}
	return ids
}

// Cut takes a machine off the network, or puts it back, as a switch would: what runs there runs on.
func (m *Machines) Cut(id string, off bool) error {
	m.mu.Lock()
	one := m.all[id]
	m.mu.Unlock()
	if one == nil {
		return fmt.Errorf("netns: there is no machine of instance %s", id)
	}
	to := "up"
	if off {
		to = "down"
	}
	// The far end of the link, so that the route to it stays: over another route, something else might
	// answer for the machine's address.
	return ip("-n", one.link, "link", "set", "eth0", to)
}

// Close ends all machines.
func (m *Machines) Close() {
	m.mu.Lock()
	all := m.all
	m.all = map[string]*machine{}
	m.mu.Unlock()
	for _, one := range all {
		one.end()
		_ = os.RemoveAll(one.dir)
	}
}

// hostKey is where the server replaces the key of a machine. Each machine has a directory of its own
// there: what is written must reach its own sshd, and never the host's.
const hostKey = "/etc/ssh/ssh_host_ed25519_key"

// hostUsers is this host's list of users. A machine with a user of its own has a file of its own there,
// which is ownUsers in its directory.
const hostUsers, ownUsers = "/etc/passwd", "passwd"

// start makes the files and the network of a machine and boots it. What it has made when it fails,
// end removes.
func (o *machine) start(cfg Config, data *userData, address string) error {
	keys := filepath.Join(o.dir, "ssh")
	if err := errors.Join(os.MkdirAll(filepath.Join(o.dir, "muster"), 0o700), os.MkdirAll(keys, 0o755), os.MkdirAll(filepath.Join(o.dir, "home"), 0o700), os.MkdirAll("/var/lib/muster", 0o755), os.MkdirAll("/run/sshd", 0o755)); err != nil {
		return err
	}
	key, authorized := filepath.Join(keys, filepath.Base(hostKey)), filepath.Join(o.dir, "authorized_keys")
	config := []string{"ListenAddress " + address, "HostKey " + hostKey, "AuthorizedKeysFile " + authorized, "PidFile none", "UsePAM no",
		"StrictModes no", "PasswordAuthentication no", "PermitRootLogin prohibit-password"}
	if cfg.User != "" {
		bin, err := o.addUser(cfg.User)
		if err != nil {
			return err
		}
		config = append(config, "SetEnv PATH="+bin+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	files := map[string]string{authorized: strings.Join(data.Authorized, "\n") + "\n", o.dir + "/sshd_config": strings.Join(config, "\n") + "\n"}
	// User data counts at the first start only: a machine that was off has the key that it had then.
	_, err := os.Stat(key)
	first := err != nil
	if first {
		files[key] = data.HostKeys.Private
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if first && cfg.Image != "" {
		// Links, since each machine would need a copy of its own otherwise.
		if out, err := exec.Command("cp", "-al", cfg.Image+"/.", filepath.Join(o.dir, "muster")).CombinedOutput(); err != nil {
			return fmt.Errorf("netns: image %s: %w: %s", cfg.Image, err, out)
		}
	}
	outside := fmt.Sprintf("%s.%d.1/30", cfg.Net, o.number)
	for _, args := range [][]string{
		{"netns", "add", o.link}, {"link", "add", o.link, "type", "veth", "peer", "name", "eth0", "netns", o.link},
		{"addr", "add", outside, "dev", o.link}, {"link", "set", o.link, "up"},
		{"-n", o.link, "addr", "add", address + "/30", "dev", "eth0"}, {"-n", o.link, "link", "set", "eth0", "up"}, {"-n", o.link, "link", "set", "lo", "up"},
		{"-n", o.link, "addr", "add", "169.254.169.254/32", "dev", "lo"},
	} {
		if err := ip(args...); err != nil {
			return err
		}
	}
	// The service listens before the machine boots: what runs there may ask at once.
	l, err := listenInside(context.Background(), o.link, "169.254.169.254:80")
	if err != nil {
		return err
	}
	o.server = &http.Server{Handler: newMetadata(cfg, o.id), ReadHeaderTimeout: time.Minute}
	go func() { _ = o.server.Serve(l) }()
	return o.boot()
}

// goodSudo is a sudo that asks for no password, for a user who is root already.
const goodSudo = `#!/bin/sh
while [ $# -gt 0 ]; do
	case "$1" in
	-n) shift ;;
	--) shift; break ;;
	*) break ;;
	esac
done
exec "$@"
`

// addUser writes the machine's own list of users, with one more, and a directory with its sudo.
func (o *machine) addUser(name string) (bin string, err error) {
	users, err := os.ReadFile(hostUsers)
	if err != nil {
		return "", err
	}
	// Looking up a user id finds the first entry, so root keeps its name.
	users = append(users, name+":x:0:0::/root:/bin/sh\n"...)
	bin = filepath.Join(o.dir, "bin")
	return bin, errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "sudo"), []byte(goodSudo), 0o755),
		os.WriteFile(filepath.Join(o.dir, ownUsers), users, 0o644))
}

// boot starts the machine's first process, with directories of its own where the server writes and
// where the login user is at home: what root's shell reads at its start on this host can wait for
// locks that are shared, and a machine that is killed leaves them. When that is killed, all of the machine is gone.
func (o *machine) boot() error {
	log, err := os.Create(filepath.Join(o.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// The namespace of processes is what makes a power cut of one kill: with its first process all are
	// gone. The mounts are the machine's alone, and end with it.
	cmd := exec.Command("ip", "netns", "exec", o.link, "setsid", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		`mount --bind "$1/muster" /var/lib/muster && mount --bind "$1/ssh" /etc/ssh && mount --bind "$1/home" /root && { [ ! -e "$1/$2" ] || mount --bind "$1/$2" "$3"; } &&
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"`, "sh", o.dir, ownUsers, hostUsers)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	o.process = cmd
	go func() {
		_ = cmd.Wait()
		close(o.gone)
	}()
	return nil
}

// end removes the machine, as far as it was made, and leaves its files.
func (o *machine) end() {
	o.stop.Do(func() {
		if o.server != nil {
			_ = o.server.Close()
		}
		if o.process != nil {
			_ = o.process.Process.Kill()
			<-o.gone
		}
		_ = ip("link", "delete", o.link)
		_ = ip("netns", "delete", o.link)
	})
}

// ip changes the network by the program: its words are those of every manual, and tests only need it.
func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("netns: ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
