package cli

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

	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/version"
)

// NeedsCommand is the work of a command that has only others below it.
func NeedsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
		}
	}
	return Usage(fmt.Errorf("%s needs one of: %s", c.CommandPath(), strings.Join(names, ", ")))
}

// App is what the commands share: where they print, and what was said of where the server is.
type App struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	Given     locate.Given
	JSON      bool
	Namespace string

	// started is set when a command's own work begins: errors before it are of usage.
	started bool
	// signals are kept from the commands' context by those that treat them themselves.
	Signals chan os.Signal
	// startWait is how long a member that is about to start is waited for; 0: not at all.
	StartWait time.Duration
}

// NewApp is an app of this process. Its end must be called: it takes signals until then.
func NewApp(stdin io.Reader, stdout, stderr io.Writer) *App {
	a := &App{Stdin: stdin, Stdout: stdout, Stderr: stderr, Signals: make(chan os.Signal, 4), StartWait: startWait}
	signal.Notify(a.Signals, os.Interrupt, syscall.SIGTERM)
	// A closed terminal ends as Ctrl-C does, unless who started us wants it survived (nohup).
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(a.Signals, syscall.SIGHUP)
	}
	return a
}

func (a *App) End() { signal.Stop(a.Signals) }

// Execute runs a command line and returns its exit code.
func (a *App) Execute(root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return exitOK
	}
	if !a.started {
		err = Usage(err)
	}
	return a.report(cmd, err)
}

// report prints an error, and tells the exit code that goes with it.
func (a *App) report(cmd *cobra.Command, err error) int {
	code, text := explain(err)
	if text != "" {
		fmt.Fprintf(a.Stderr, "muster: %s\n", term.Clean(text))
	}
	if code == ExitUsage && !a.started {
		fmt.Fprintf(a.Stderr, "`%s --help` tells more.\n", cmd.CommandPath())
	}
	return code
}

// Root is the command muster, without the commands below it.
func (a *App) Root() *cobra.Command {
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
	f.StringVar(&a.Given.Address, "addr", "", "address of the server, as host:port or a URL (MUSTER_ADDR)")
	f.StringVar(&a.Given.Token, "token", "", "token of the server (better: MUSTER_TOKEN, which others do not see)")
	f.StringVar(&a.Given.DataDir, "data-dir", "", "data directory of a server on this host (MUSTER_DATA_DIR)")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	return root
}

// Command makes a command of its work, whose context ends with the first signal.
func (a *App) Command(use, short, long string, args cobra.PositionalArgs, work func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: term.Reflow(short + ".\n\n" + long), Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			done := make(chan struct{})
			defer close(done)
			go func() {
				select {
				case <-a.Signals:
					cancel(ErrInterrupted)
				case <-done:
					return
				}
				// Who asks twice does not want to wait for an orderly end.
				select {
				case <-a.Signals:
					fmt.Fprintln(a.Stderr, "muster: left at once")
					os.Exit(ExitInterrupted)
				case <-done:
				}
			}()
			err := work(ctx, args)
			if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), ErrInterrupted) {
				return ErrInterrupted
			}
			return err
		},
	}
}

// ClientCommand is Command for work that begins with a client of the server.
func (a *App) ClientCommand(use, short, long string, args cobra.PositionalArgs, work func(ctx context.Context, cl *client.Client, args []string) error) *cobra.Command {
	return a.Command(use, short, long, args, func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		return work(ctx, cl, args)
	})
}

// NamespaceFlag lets a command be told the namespace.
func (a *App) NamespaceFlag(c *cobra.Command, what string) {
	c.Flags().StringVarP(&a.Namespace, "namespace", "n", "", what)
}

// PrintJSON prints a value for programs.
func (a *App) PrintJSON(v any) error {
	return term.WriteJSON(a.Stdout, v)
}

// PrintTable prints rows under headers: with style on a terminal, else in plain columns.
func (a *App) PrintTable(headers []string, rows [][]string) {
	term.WriteTable(a.Stdout, headers, rows)
}

// PrintFields prints names and values, a line each, without those that are empty.
func (a *App) PrintFields(pairs ...string) {
	term.WriteFields(a.Stdout, pairs...)
}
