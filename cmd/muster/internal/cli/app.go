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

// NeedsCommand is the work of a command that has only others below it: it names them. Without it
// cobra would print the whole help text and exit with 0, and a script would not notice that it did
// nothing.
func NeedsCommand(c *cobra.Command, _ []string) error {
	var names []string
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			names = append(names, s.Name())
		}
	}
	return Usage(fmt.Errorf("%s needs one of: %s", c.CommandPath(), strings.Join(names, ", ")))
}

// App is what all commands share: where they read and print, and what the user said of the server
// that is meant. There is one for each command line. It is not safe for two commands at once,
// because flags of one are fields of it.
type App struct {
	// Stdin, Stdout and Stderr are those of the process, or a test's. Output of commands and
	// answers go to Stdout; everything else that is said goes to Stderr.
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	// Given is what flags say of the server. What the environment says is added by Connect, and
	// counts less.
	Given locate.Given
	// JSON is set by --json: answers are printed for programs.
	JSON bool
	// Namespace is that of --namespace, "" without it. Each command says what it means.
	Namespace string

	// started is set when a command's own work begins. Errors before it are of usage: flags and
	// arguments.
	started bool
	// Signals has what the process was sent. A command made by Command ends with the first one;
	// others read them by themselves, to pass them on or to stop what they follow.
	Signals chan os.Signal
	// StartWait is how long a command waits for a member that is about to start; 0: not at all.
	StartWait time.Duration
}

// NewApp returns the app of this process, which takes over its signals. End must be called: until
// then SIGINT and SIGTERM do not end the process by themselves.
func NewApp(stdin io.Reader, stdout, stderr io.Writer) *App {
	a := &App{Stdin: stdin, Stdout: stdout, Stderr: stderr, Signals: make(chan os.Signal, 4), StartWait: startWait}
	signal.Notify(a.Signals, os.Interrupt, syscall.SIGTERM)
	// A closed terminal ends as Ctrl-C does, unless who started us wants it survived (nohup).
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(a.Signals, syscall.SIGHUP)
	}
	return a
}

// End gives the signals back to the system's default.
func (a *App) End() { signal.Stop(a.Signals) }

// Execute runs a command line below root, prints an error if there is one, and returns the exit
// code of the process. It may be called once.
func (a *App) Execute(root *cobra.Command, args []string) int {
	root.SetArgs(args)
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return ExitOK
	}
	if !a.started {
		err = Usage(err)
	}
	return a.report(cmd, err)
}

// report prints an error and returns the exit code that goes with it. Only who made a mistake with
// flags or arguments is shown the way to the help text: to others it would say nothing.
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

// Root is the command muster without the commands below it. The flags that all commands take are
// those of the app.
func (a *App) Root() *cobra.Command {
	root := &cobra.Command{
		Use:   "muster",
		Short: "A job queue that makes its own machines",
		Long: term.Reflow(`Muster runs jobs on machines that it creates when there is work and destroys when there is none.

  muster dev                       start a server for yourself, in one terminal
  muster run -- echo hello         run a command, in another
  muster job list                  see what ran

A server on this host is found automatically: the one that you started last. For another, give --addr and a token, or --data-dir, or name it once with muster context add.` + exitHelp),
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
	f.StringVar(&a.Given.Context, "context", "", "context to use, see muster context (MUSTER_CONTEXT)")
	f.BoolVar(&a.JSON, "json", false, "print JSON")
	return root
}

// Command makes a command of its work. The work's context ends with the first signal; a second one
// ends the process at once, because whoever asks twice does not want to wait for an orderly end.
// The help text is short, a full stop, and long.
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
					fmt.Fprintln(a.Stderr, "muster: exited without waiting")
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

// ClientCommand is Command for work that begins with a client of the server, as that of most
// commands does.
func (a *App) ClientCommand(use, short, long string, args cobra.PositionalArgs, work func(ctx context.Context, cl *client.Client, args []string) error) *cobra.Command {
	return a.Command(use, short, long, args, func(ctx context.Context, args []string) error {
		cl, err := a.Connect()
		if err != nil {
			return err
		}
		return work(ctx, cl, args)
	})
}

// NamespaceFlag lets a command be told the namespace. What says what the flag means there.
func (a *App) NamespaceFlag(c *cobra.Command, what string) {
	c.Flags().StringVarP(&a.Namespace, "namespace", "n", "", what)
}

// PrintJSON prints an answer for programs.
func (a *App) PrintJSON(v any) error {
	return term.WriteJSON(a.Stdout, v)
}

// PrintTable prints an answer as a table; see term.WriteTable.
func (a *App) PrintTable(headers []string, rows [][]string) {
	term.WriteTable(a.Stdout, headers, rows)
}

// PrintFields prints an answer as names and values; see term.WriteFields.
func (a *App) PrintFields(pairs ...string) {
	term.WriteFields(a.Stdout, pairs...)
}
