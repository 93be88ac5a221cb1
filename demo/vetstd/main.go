// Command vetstd is Muster's demonstration: it starts a server of its own,
// vets Go's standard library as an array job on instances that are made on
// demand, and shows what happened.
//
// It must never leave anything behind: no process, cgroup or file; and it must
// never talk to another server than its own. `make demo` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
)

func main() {
	bin := flag.String("bin", "bin", "directory of the programs muster and muster-node")
	members := flag.Int("members", 16, "members of the array job")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *bin, *members); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, bin string, members int) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "muster-demo-")
	if err != nil {
		return err
	}
	defer func() {
		// Go's build cache is read-only in places.
		_ = filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		if rm := os.RemoveAll(dir); err == nil {
			err = rm
		}
	}()

	job, err := newVetJob(ctx, dir, members)
	if err != nil {
		return err
	}
	srv, err := startServer(ctx, bin, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.stop()) }()
	fmt.Printf("a server on %s, with two offerings of the provider local:\n", srv.c.Address())
	for _, o := range offerings {
		fmt.Printf("  %-6s %g cpu, %s, %g an hour, at most %d\n", o.name, o.cpu, o.memory, o.price, o.max)
	}
	fmt.Printf("the job: go vet of the %d packages of Go's standard library (%s), in %d members\n\n", job.packages, job.goVersion, members)

	sub, err := srv.c.Submit(ctx, job.submission(), client.NewKey())
	if err != nil {
		return err
	}
	key := muster.JobKey{Namespace: muster.Namespace(sub.Namespace), Name: sub.Name}
	done, err := follow(ctx, srv.c, key, members)
	if err != nil {
		return err
	}
	if err := waitNodesGone(ctx, srv.c); err != nil {
		return err
	}
	if err := show(ctx, srv.c, key); err != nil {
		return err
	}
	fmt.Printf("\njob %s %s after %s; everything together took %s\n", key, done.Outcome, took(done), time.Since(began).Round(100*time.Millisecond))
	if done.Outcome != string(muster.JobSucceeded) {
		return fmt.Errorf("job %s %s: %s", key, done.Outcome, done.Reason)
	}
	return nil
}
