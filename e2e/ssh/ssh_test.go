// Package ssh tests a real server on hosts that it reaches over SSH: network namespaces of this machine, each
// with an OpenSSH server, a host key and a state of its own. make e2e-ssh runs it.
package ssh

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// hostLine is a host of a static provider in a configuration.
func hostLine(name string, i instance, key string) string {
	return fmt.Sprintf("  - {name: %s, address: %s, offering: rack, host_keys: [%q]}\n", name, i.Address, key)
}

func staticProvider(name, keyFile, hosts string) string {
	return fmt.Sprintf("- name: %s\n  type: static\n  ssh: {key_file: %s}\n  offerings: [{name: rack, cpu: 1, memory: 512MiB}]\n  hosts:\n%s", name, keyFile, hosts)
}

// A job on hosts over SSH: one is cut off for less than the grace and loses nothing, one for more, one is killed, and one
// has the wrong key, of which nothing is heard but that.
func TestStaticHosts(t *testing.T) {
	need(t)
	t.Parallel()
	keyFile, public := newKey(t)
	l := newLab(t, "10.213", public)
	const good = 5
	hosts := make([]instance, good)
	byAddress, lines := map[string]instance{}, ""
	for n := range hosts {
		hosts[n] = l.host(fmt.Sprint("h", n))
		byAddress[hosts[n].Address] = hosts[n]
		lines += hostLine(fmt.Sprint("h", n), hosts[n], hosts[n].HostKeys[0])
	}
	wrong := l.host("wrong")
	s := serve(t, staticProvider("lab", keyFile, lines)+staticProvider("stranger", keyFile, hostLine("wrong", wrong, hosts[0].HostKeys[0])),
		"- {name: lab, provider: lab, grace: 20s, boot_timeout: 30s, idle_timeout: 10m, boot_probe: {command: 'test -d /var/lib/muster'}}")

	// O3: good hosts pass the check of their provider; one with another key does not, and the reason is told in words.
	if out, status := s.Run("provider", "check", "lab"); status != 0 || !strings.Contains(out, "provider lab works") {
		t.Errorf("check of lab: %d\n%s", status, out)
	}
	if out, status := s.Run("provider", "check", "stranger", "--timeout", "5s"); status != 1 || !strings.Contains(out, "host key of "+wrong.Address) || !strings.Contains(out, "expected ssh-ed25519") {
		t.Errorf("check of stranger: %d\n%s", status, out)
	}
	// L9: not one command was run there.
	if entries, err := os.ReadDir(l.kept(wrong)); err != nil || len(entries) != 0 {
		t.Errorf("on the host with the wrong key: %v, %v", entries, err)
	}

	gate := filepath.Join(t.TempDir(), "gate")
	script := "echo on; while ! test -e " + gate + "; do sleep 0.1; done; echo member $MUSTER_INDEX attempt $MUSTER_ATTEMPT"
	if out, status := s.Run("run", "--detach", "--name", "work", "--count", "3", "--cpu", "1", "--memory", "64MiB", "--", "sh", "-c", script); status != 0 {
		t.Fatal(out)
	}
	s.Until("three members run", func() bool { return len(s.running("work")) == 3 })
	was := s.running("work")
	// The instance's id begins with the host's name.
	hostOf := func(a api.Alloc) instance {
		name, _, _ := strings.Cut(s.node(a.Node).Instance, "-")
		var n int
		if _, err := fmt.Sscanf(name, "h%d", &n); err != nil {
			t.Fatalf("instance %s", s.node(a.Node).Instance)
		}
		return hosts[n]
	}
	short, long, dead := hostOf(was[0]), hostOf(was[1]), hostOf(was[2])

	// Cut off for less than the grace: lost, and good again.
	l.link(short, "down")
	s.Until("the first is lost", func() bool { return s.node(was[0].Node).Health == string(muster.NodeLost) })
	l.link(short, "up")

	// Cut off for more, and killed: given up, and their work placed elsewhere.
	l.link(long, "down")
	l.kill(dead)
	s.Until("the first is good again", func() bool { return s.node(was[0].Node).Health == string(muster.NodeGood) })
	s.Until("the others run elsewhere", func() bool {
		now := s.running("work")
		return len(now) == 3 && now[1].Attempt == 2 && now[2].Attempt == 2
	})
	if now := s.running("work")[0]; now.ID != was[0].ID {
		t.Errorf("the member of the host that came back has %s instead of %s", now.ID, was[0].ID)
	}
	for index, now := range s.running("work") {
		if h := hostOf(now); index > 0 && (h.ID == long.ID || h.ID == dead.ID) {
			t.Errorf("member %d was placed on the lost host %s", index, h.ID)
		}
	}
	left := filepath.Join(l.kept(long), "nodes", was[1].Node)
	if _, err := os.Lstat(left); err != nil {
		t.Errorf("the host that is cut off has nothing of its node: %v", err)
	}
	l.link(long, "up")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Until("the job has ended", func() bool {
		j, err := s.Client.Job(t.Context(), muster.JobKey{Namespace: muster.DefaultNamespace, Name: "work"})
		return err == nil && j.Stage == string(muster.JobEnded) && j.Outcome == "succeeded"
	})
	out := s.output("work")
	for _, want := range []string{"member 0 attempt 1", "member 1 attempt 2", "member 2 attempt 2"} {
		if strings.Count(out, want) != 1 {
			t.Errorf("%q is not once in the output:\n%s", want, out)
		}
	}
	// What is back is cleared before it is used again.
	s.Until("the host that was cut off is cleared", func() bool {
		_, err := os.Lstat(left)
		return os.IsNotExist(err)
	})
}

// A job on machines that a program makes, with the host keys that it tells; they go when they are idle.
func TestProgram(t *testing.T) {
	need(t)
	t.Parallel()
	keyFile, public := newKey(t)
	l := newLab(t, "10.214", public)
	env := ""
	for _, e := range l.env() {
		name, value, _ := strings.Cut(e, "=")
		env += fmt.Sprintf("%s: %q, ", name, value)
	}
	s := serve(t, fmt.Sprintf("- name: cells\n  type: exec\n  command: [%s]\n  env: {%s}\n  ssh: {key_file: %s}\n", absolute(t, "../../docs/examples/provider-netns.sh"), strings.TrimSuffix(env, ", "), keyFile),
		"- {name: cells, provider: cells, max: 4, idle_timeout: 1s}")
	if out, status := s.Run("provider", "check", "cells", "--", "cat", "/proc/sys/kernel/hostname"); status != 0 {
		t.Errorf("%d\n%s", status, out)
	}
	out, status := s.Run("run", "--name", "work", "--count", "2", "--cpu", "1", "--memory", "64MiB", "--", "sh", "-c", "echo member $MUSTER_INDEX; ls -d /var/lib/muster/nodes/n*")
	if status != 0 || !strings.Contains(out, "member 0") || !strings.Contains(out, "member 1") {
		t.Errorf("%d\n%s", status, out)
	}
	s.Until("the instances are gone", func() bool { return len(l.list()) == 0 })
	if machines, err := os.ReadDir(filepath.Join(l.dir, "machines")); err != nil || len(machines) != 0 {
		t.Errorf("left: %v, %v", machines, err)
	}
}
