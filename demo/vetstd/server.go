package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/locate"
)

// offerings are what the demonstration's provider sells. There is less of the
// cheaper one than the job needs, so that both are used.
var offerings = []struct {
	name   string
	cpu    float64
	memory string
	price  float64
	max    int
}{
	{"small", 1, "1GiB", 0.01, 1},
	{"large", 2, "2GiB", 0.025, 1},
}

func config(dataDir string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "data_dir: %s\nlisten: 127.0.0.1:0\nlow_water: 64MiB\nproviders:\n  - name: local\n    type: local\n    offerings:\n", dataDir)
	for _, o := range offerings {
		fmt.Fprintf(&b, "      - {name: %s, cpu: %g, memory: %s, disk: 1GiB, price: %g, max: %d}\n", o.name, o.cpu, o.memory, o.price, o.max)
	}
	b.WriteString("pools:\n  - {name: demo, provider: local, idle_timeout: 1s}\n")
	return b.Bytes()
}

// server is a muster server of the demonstration's own.
type server struct {
	c    *client.Client
	cmd  *exec.Cmd
	done chan error
	log  string
}

func startServer(ctx context.Context, bin, dir string) (*server, error) {
	data := filepath.Join(dir, "d")
	conf := filepath.Join(dir, "muster.yaml")
	if err := os.WriteFile(conf, config(data), 0o600); err != nil {
		return nil, err
	}
	program, err := filepath.Abs(filepath.Join(bin, "muster"))
	if err != nil {
		return nil, err
	}
	log := filepath.Join(dir, "server.log")
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	// The server outlives ctx on purpose: it is ended in order, by stop.
	s := &server{cmd: exec.Command(program, "server", "-c", conf), done: make(chan error, 1), log: log}
	s.cmd.Stdout, s.cmd.Stderr = out, out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us to handle
	// Its note for clients that are told nothing belongs here, not in the user's configuration.
	s.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+dir)
	s.cmd.WaitDelay = time.Second
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w; run `make build` first", err)
	}
	go func() { s.done <- s.cmd.Wait() }()
	if err := s.connect(ctx, data); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

func (s *server) connect(ctx context.Context, data string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if at, err := locate.Find(locate.Given{DataDir: data}); err == nil {
			if s.c, err = client.New(client.Config{Address: at.Address, Token: at.Token, RetryFor: 10 * time.Second, UserAgent: "muster-demo"}); err != nil {
				return err
			}
			return s.c.WaitReady(ctx)
		}
		select {
		case <-tick.C:
		case err := <-s.done:
			s.done <- err
			b, _ := os.ReadFile(s.log)
			return fmt.Errorf("the server ended at once: %w\n%s", err, b)
		case <-ctx.Done():
			return fmt.Errorf("the server did not come up: %w", ctx.Err())
		}
	}
}

// stop ends what still runs, waits for the instances to go, and ends the server.
func (s *server) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var err error
	if s.c != nil {
		for j, e := range s.c.AllJobs(ctx, client.JobQuery{Stage: muster.JobLive}) {
			if e != nil {
				err = e
				break
			}
			_, e = s.c.Stop(ctx, muster.JobKey{Namespace: muster.Namespace(j.Namespace), Name: j.Name}, "the demonstration ends")
			err = errors.Join(err, e)
		}
		err = errors.Join(err, waitNodesGone(ctx, s.c))
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case e := <-s.done:
		if e != nil {
			err = errors.Join(err, fmt.Errorf("the server: %w", e))
		}
	case <-ctx.Done():
		_ = s.cmd.Process.Kill()
		err = errors.Join(err, errors.New("the server did not end when it was asked to; killed"))
	}
	return err
}

// waitNodesGone waits until no instance is left: they are idle and go by themselves.
func waitNodesGone(ctx context.Context, c *client.Client) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		left := ""
		for n, err := range c.AllNodes(ctx, client.NodeQuery{}) {
			if err != nil {
				return err
			}
			if muster.NodeStage(n.Stage).Live() {
				left = n.ID
			}
		}
		if left == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s is not gone: %w", left, ctx.Err())
		}
	}
}
