package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/version"
)

// app is what the commands share: where they print, and what was said of where the server is.
type app struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer

	given     locate.Given
	json      bool
	namespace string

	// started is set when a command's own work begins: errors before it are of usage.
	started bool
	// signals are kept from the commands' context by those that treat them themselves.
	signals chan os.Signal
	// startWait is how long a member that is about to start is waited for; 0: not at all.
	startWait time.Duration
}

// newApp is an app of this process. Its end must be called: it takes signals until then.
func newApp(stdin io.Reader, stdout, stderr io.Writer) *app {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, signals: make(chan os.Signal, 4), startWait: startWait}
	signal.Notify(a.signals, os.Interrupt, syscall.SIGTERM)
	// A closed terminal ends as Ctrl-C does, unless who started us wants it survived (nohup).
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(a.signals, syscall.SIGHUP)
	}
	return a
}

func (a *app) end() { signal.Stop(a.signals) }

// execute runs a command line and returns its exit code.
func (a *app) execute(root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exitOK
	}
	if !a.started {
		err = usage(err)
	}
	return a.report(cmd, err)
}

// report prints an error, and tells the exit code that goes with it.
func (a *app) report(cmd *cobra.Command, err error) int {
	code, text := explain(err)
	if text != "" {
		fmt.Fprintf(a.stderr, "muster: %s\n", term.Clean(text))
	}
	if code == exitUsage && !a.started {
		fmt.Fprintf(a.stderr, "`%s --help` tells more.\n", cmd.CommandPath())
	}
	return code
}

// root is the command muster, without the commands below it.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "A job queue that makes its own machines",
		Long: term.Reflow(`Muster runs jobs on machines that it makes when there is work and gives back
when there is none.

  muster dev                       start a server for yourself, in one terminal
  muster run -- echo hello         run a command, in another
  muster job list                  see what ran

A server on this host is found by itself: the one that you started last. To speak to
another, give --addr and a token, or --data-dir.` + exitHelp),
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.started = true
		},
	}
	root.SetVersionTemplate("muster {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&a.given.Address, "addr", "", "address of the server, as host:port or a URL (MUSTER_ADDR)")
	f.StringVar(&a.given.Token, "token", "", "token of the server (better: MUSTER_TOKEN, which others do not see)")
	f.StringVar(&a.given.DataDir, "data-dir", "", "data directory of a server on this host (MUSTER_DATA_DIR)")
	f.BoolVar(&a.json, "json", false, "print JSON")
	return root
}

// command makes a command of its work, whose context ends with the first signal.
func (a *app) command(use, short, long string, args cobra.PositionalArgs, work func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: term.Reflow(short + ".\n\n" + long), Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			done := make(chan struct{})
			defer close(done)
			go func() {
				select {
				case <-a.signals:
					cancel(errInterrupted)
				case <-done:
					return
				}
				// Who asks twice does not want to wait for an orderly end.
				select {
				case <-a.signals:
					fmt.Fprintln(a.stderr, "muster: left at once")
					os.Exit(exitInterrupted)
				case <-done:
				}
			}()
			err := work(ctx, args)
			if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), errInterrupted) {
				return errInterrupted
			}
			return err
		},
	}
}

// namespaceFlag lets a command be told the namespace.
func (a *app) namespaceFlag(c *cobra.Command, what string) {
	c.Flags().StringVarP(&a.namespace, "namespace", "n", "", what)
}

// jobAt is the job of that name, and a client to ask the server about it.
func (a *app) jobAt(name string) (muster.JobKey, *client.Client, error) {
	key, err := a.jobKey(name)
	if err != nil {
		return key, nil, err
	}
	cl, err := a.connect()
	return key, cl, err
}

// jobKey reads a job's name as users write it: name, or namespace/name.
func (a *app) jobKey(name string) (muster.JobKey, error) {
	key := muster.JobKey{Namespace: muster.Namespace(a.namespace), Name: name}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		if a.namespace != "" && a.namespace != ns {
			return key, usage(fmt.Errorf("%q is in another namespace than --namespace %s", name, a.namespace))
		}
		key = muster.JobKey{Namespace: muster.Namespace(ns), Name: rest}
	}
	if key.Namespace == "" {
		key.Namespace = muster.DefaultNamespace
	}
	if err := muster.CheckName(string(key.Namespace)); err != nil {
		return key, usage(fmt.Errorf("namespace %q %w", key.Namespace, err))
	}
	if err := muster.CheckName(key.Name); err != nil {
		return key, usage(fmt.Errorf("job name %q %w", key.Name, err))
	}
	return key, nil
}

// connect makes a client of the server that was meant.
func (a *app) connect() (*client.Client, error) {
	given := a.given.Environment(os.Getenv)
	place, err := locate.Find(given)
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{
		Address: place.Address, Token: place.Token, UserAgent: "muster/" + version.String(),
		// A server that was started again may have come back on another port.
		Find: func() (string, muster.Secret, error) {
			p, err := locate.Find(given)
			return p.Address, p.Token, err
		},
	})
}
