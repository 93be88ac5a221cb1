package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/cmd/muster/internal/transfer"
	"github.com/musterhq/muster/internal/wait"
)

// runCommand makes muster run. It does not go through App.Command: a signal stops the job, and does
// not end the command.
func runCommand(a *cli.App) *cobra.Command {
	r := &runner{app: a}
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARGUMENT...]",
		Short: "Run a command as a job, and follow it",
		Long: term.Reflow(`Run a command as a job, and follow it.

The command is passed as it is: for pipes and variables, run a shell. Each member
has its index in MUSTER_INDEX.

  muster run -- echo hello
  muster run --count 8 --cpu 0.5 --memory 64MiB -- sh -c 'echo member $MUSTER_INDEX'
  muster run --input data.csv:data.csv --output result.txt -- sh -c 'sort data.csv > result.txt'
  muster run --file job.yaml --count 2
  sort words.txt | muster run -i -- uniq -c
  muster run -it --image debian:12 -- bash

With one member, its stdout and stderr are printed as they are; with several, lines are prefixed with the member's index. Status messages go to stderr and begin with "muster:".

Ctrl-C stops the job and waits for its end; press it again to exit without waiting. Ctrl-\ exits at once, and the job keeps running, as it does when the terminal is closed. With --detach the job runs in the background: see muster job logs, show and stop. If the server restarts meanwhile, the command reconnects; if it is unreachable for longer than --patience, the command exits with code 3, and the job keeps running.

With -t the command has your terminal, as with muster exec -it: keys, size and Ctrl-C are the command's, nothing of what it prints is kept for muster job logs, and the job ends with it. It is started by sh, without the entrypoint of its image; without a command it is sh.

Exit code: 0 if all members succeeded. With one member, its command's own exit code,
128 + N if signal N ended it, 124 if its time limit ended it, 126 if it could not be executed, 127 if it was not
found, 137 if it ran out of memory. With several, 1 if any failed. 130 if interrupted, 129 if the terminal was closed.
Muster's own errors as with all commands: 1, 2, 3, 4, with a line on stderr.`),
		Args: cobra.ArbitraryArgs,
	}
	c.Flags().SetInterspersed(false) // what follows the command is its own
	c.SetFlagErrorFunc(plainHabit)
	r.spec.flags(c)
	c.Flags().BoolVarP(&r.detach, "detach", "d", false, "submit the job, print its name, and exit")
	c.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "print only the output of members, and errors")
	c.Flags().BoolVarP(&r.stdin, "stdin", "i", false, "read stdin to its end, and give it to each member as its stdin; the command is started by sh")
	c.Flags().BoolVarP(&r.tty, "tty", "t", false, "give the command your terminal, as with muster exec -it")
	cli.DurationVar(c.Flags(), &r.patience, "patience", cli.FollowPatience, "how long to wait for a server that does not answer")
	c.RunE = func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), cmd, args) }
	return c
}

// runner is one use of muster run: what its flags say, and the app.
type runner struct {
	app  *cli.App
	spec specFlags
	// detach submits the job and leaves; quiet says nothing but errors.
	detach bool
	quiet  bool
	// stdin gives members what stdin has.
	stdin bool
	// tty gives the command the user's terminal. attached is that command, as it is executed beside
	// the one that holds the sandbox.
	tty      bool
	attached []string
	// patience is how long a server that has gone away is waited for.
	patience time.Duration
}

// run submits the job and follows it to its end. The error has the exit code that stands for how
// the job ended.
func (r *runner) run(ctx context.Context, cmd *cobra.Command, args []string) error {
	signal.Notify(r.app.Signals, unix.SIGQUIT)
	if r.tty && len(args) == 0 && r.spec.file == "" {
		args = []string{"sh"}
	}
	s, folder, err := r.spec.submission(cmd, args, r.app.Stdin)
	if err != nil {
		return addVolumes(ctx, r.app, r.spec.pool, err)
	}
	switch {
	case r.tty:
		if r.attached, err = r.giveTerminal(&s.Spec); err != nil {
			return err
		}
	case r.stdin:
		remove, err := giveStdin(&s.Spec, r.app.Stdin)
		if err != nil {
			return err
		}
		defer remove()
	}
	cl, err := r.app.Connect()
	if err != nil {
		return err
	}
	// All that follows waits for a server that goes away, but not longer than the user wants.
	cl = cl.Patient(r.patience)
	done, err := r.submit(ctx, cl, s, folder)
	if err != nil {
		return err
	}
	key := cli.JobKeyOf(done.Namespace, done.Name)
	// It is said after the submission: a job that was refused ran nowhere.
	if hint := namedLikeImage(&s.Spec); hint != "" && !r.quiet {
		fmt.Fprintf(r.app.Stderr, "muster: %s\n", hint)
	}
	if r.spec.namespace != "" && strings.Trim(r.spec.namespace, "0123456789") == "" && !r.quiet {
		fmt.Fprintf(r.app.Stderr, "muster: -n is the namespace, so the job is in namespace %s; for %s members it is --count %s\n", r.spec.namespace, r.spec.namespace, r.spec.namespace)
	}
	if r.detach {
		if r.app.JSON {
			return r.app.PrintJSON(done)
		}
		_, err := fmt.Fprintln(r.app.Stdout, key)
		return err
	}
	err = r.follow(ctx, cl, done, &s.Spec)
	// The follower has said how the command ended. This adds why, as far as it can be guessed.
	code := cli.ExitCode(err)
	failed := !slices.Contains([]int{cli.ExitOK, cli.ExitInterrupted, cli.ExitHangup, cli.ExitUnreachable}, code)
	if hint := fileHint(&s.Spec); hint != "" && failed && !r.quiet {
		fmt.Fprintf(r.app.Stderr, "muster: %s\n", hint)
		return err
	}
	if r.tty && errors.Is(err, errCommandNotFound) {
		return cli.ExitWith(cli.ExitNotFound, errors.New("-t starts the command by sh, which was not found"))
	}
	if hint := imageHint(&s.Spec); hint != "" && errors.Is(err, errCommandNotFound) {
		return cli.ExitWith(cli.ExitNotFound, errors.New(hint))
	}
	return err
}

// answerTime is how long a submission that is on its way may still be answered when a signal comes.
// With the answer the job is known, and can be stopped.
const answerTime = 2 * time.Second

// submit submits the job. A signal gives it up, unless it can still be answered: then the signal is
// left to those who follow. The server's first answer is waited for shortly only: a server that is
// not there from the start is a mistake, not a restart.
func (r *runner) submit(ctx context.Context, cl *client.Client, s api.JobSubmission, folder string) (*api.JobSubmitted, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// It is closed when the submission itself is on its way. Before that nothing has happened on
	// the server, and a signal can end it.
	sent := make(chan struct{})
	go func() {
		select {
		// The signal is put back for whoever follows the job.
		case sig := <-r.app.Signals:
			r.app.Signals <- sig
		case <-ctx.Done():
			return
		}
		select {
		case <-sent:
			wait.For(ctx, answerTime)
		default:
		}
		cancel()
	}()
	if _, err := cl.Patient(client.DefaultRetryFor).Server(ctx); err != nil {
		return nil, err
	}
	var screen *term.Screen
	if !r.quiet {
		screen = term.NewScreen(r.app.Stdout, r.app.Stderr)
	}
	if err := transfer.UploadInputs(ctx, cl, &s.Spec, folder, screen); err != nil {
		return nil, err
	}
	// The key makes a submission that is sent twice the same one.
	close(sent)
	done, err := cl.Submit(ctx, s, client.NewKey())
	if errors.Is(err, context.Canceled) {
		return nil, cli.ExitWith(cli.ExitInterrupted, errors.New("interrupted while submitting; `muster job list` tells whether the job is there"))
	}
	return done, err
}

// follow follows the job to its end. The first signal stops the job, and its end is waited for; the
// second one leaves.
func (r *runner) follow(ctx context.Context, cl *client.Client, done *api.JobSubmitted, spec *api.JobSpec) error {
	key, began := cli.JobKeyOf(done.Namespace, done.Name), time.Now()
	out := &printer{screen: term.NewScreen(r.app.Stdout, r.app.Stderr), streams: []string{client.Stdout, client.Stderr}, prefix: spec.Count > 1}
	if r.app.JSON {
		// Stdout has the job as JSON at its end, and nothing else.
		out.streams = nil
	}
	f := &follower{cl: cl, key: key, uid: done.UID, version: done.Version, out: out, index: -1, notes: !r.quiet, giveUp: spec.Restart.GiveUp, on: spec.Restart.On}
	// Events are heard from the submission on, so none is missed.
	after := strconv.FormatUint(done.Index, 10)
	// The job was there before, so its first events may be gone: it begins with what there is.
	if done.Unchanged {
		after = ""
	}
	// A command that has the terminal is started when its sandbox runs: until then the job is
	// followed as any other.
	var sandbox *api.Alloc
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r.tty {
		f.runs = func(al *api.Alloc) {
			sandbox = al
			cancel()
		}
	}
	if !r.quiet {
		r.announce(out.screen, key, done)
		// The bar asks by itself and knows nothing of signals; it ends with ctx.
		p := &progress{cl: cl, key: key, screen: out.screen, began: began}
		f.detail = p.setDetail
		go p.run(ctx)
	}
	// The first signal is an order to stop, and its answer is not waited for: a second signal must
	// be heard meanwhile.
	interrupts := 0
	var left os.Signal
	err := f.follow(ctx, after, r.app.Signals, func(sig os.Signal) bool {
		if leaves(sig) {
			left = sig
			return false
		}
		if interrupts++; interrupts > 1 {
			out.screen.Say("left; job %s may still be stopping: `muster job show %s`", key, key)
			return false
		}
		out.screen.Say("stopping job %s; press Ctrl-C again to exit without waiting", key)
		go func() {
			if _, err := cl.Stop(ctx, key, "interrupted"); err != nil && ctx.Err() == nil {
				out.screen.Say("job %s could not be stopped: %v", key, err)
			}
		}()
		return true
	})
	cancel()
	out.screen.SetBar("")
	if sandbox != nil && interrupts == 0 {
		return r.attach(outer, cl, key, f)
	}
	switch {
	case left == unix.SIGQUIT:
		out.screen.Say("left; job %s keeps running: `muster job logs -f %s`", key, key)
		return nil
	case left != nil:
		return cli.ExitSilently(cli.ExitHangup) // nobody reads a message
	case errors.Is(err, cli.ErrInterrupted):
		return cli.ExitSilently(cli.ExitInterrupted)
	}
	if err != nil {
		return cli.WithHint(err, fmt.Sprintf("the job keeps running: `muster job show %s`", key))
	}
	if r.app.JSON {
		if err := r.app.PrintJSON(f.job); err != nil {
			return err
		}
	}
	return f.ending(r.quiet, interrupts > 0, time.Since(began))
}

// leaves reports whether a signal means that the command ends and the job keeps running: its terminal
// was closed, as when a connection broke, or Ctrl-\ was pressed.
func leaves(sig os.Signal) bool { return sig == unix.SIGHUP || sig == unix.SIGQUIT }

// announce says under which name the job can be found again.
func (r *runner) announce(s *term.Screen, key muster.JobKey, done *api.JobSubmitted) {
	if done.Unchanged {
		s.Say("job %s is there with the same content (version %d); following that", key, done.Version)
		return
	}
	s.Say("job %s", key)
}

// ending says how the job ended, and makes the exit code of it. Quiet says nothing of a success.
func (f *follower) ending(quiet, interrupted bool, took time.Duration) error {
	j, s := f.job, f.out.screen
	// With one member the command looks like the job's own command: its output, its exit code.
	one := j.Count == 1
	if j.Outcome == string(muster.JobSucceeded) {
		if !one && !quiet {
			s.Say("job %s: all %d members succeeded in %s", f.key, j.Count, term.Brief(took))
		}
		// It ended before the signal reached it.
		if interrupted {
			return cli.ExitSilently(cli.ExitInterrupted)
		}
		return nil
	}
	// Of one member, what its attempt came to was said already, and its exit code says it as well.
	if !one || f.last == nil || f.told == 0 && !exited(f.last) {
		text := fmt.Sprintf("job %s: %s", f.key, term.OrDash(j.Outcome))
		if !one {
			text += fmt.Sprintf(": %d of %d members succeeded, %d failed, %d stopped", j.Counts.Succeeded, j.Count, j.Counts.Failed, j.Counts.Stopped)
		}
		s.Say("%s%s", text, term.SuffixIf(j.Reason != "", ": "+j.Reason))
	}
	switch {
	case interrupted:
		return cli.ExitSilently(cli.ExitInterrupted)
	case one && f.last != nil && j.Outcome == string(muster.JobFailed) && f.last.Failure != nil && f.last.Failure.Reason == string(muster.ReasonCommandNotFound):
		return errCommandNotFound
	case one && f.last != nil && j.Outcome == string(muster.JobFailed):
		return cli.ExitSilently(exitCodeOf(f.last))
	}
	return cli.ExitSilently(cli.ExitFailed)
}

// errCommandNotFound says that the job's own program was not found. It is told apart from an exit
// code of 127, which a shell has that did not find another program.
var errCommandNotFound = cli.ExitSilently(cli.ExitNotFound)

// exited reports whether a command ended by itself or by a signal, and not well.
func exited(al *api.Alloc) bool {
	return al.ExitCode != nil && *al.ExitCode != 0 || al.Signal != ""
}

// exitCodeOf is the exit code that stands for how a failed attempt ended, as shells and timeout(1)
// have it.
func exitCodeOf(al *api.Alloc) int {
	reason := muster.Reason("")
	if al.Failure != nil {
		reason = muster.Reason(al.Failure.Reason)
	}
	switch reason {
	case muster.ReasonTimeout:
		return cli.ExitTimeout
	case muster.ReasonNotExecutable:
		return cli.ExitNotExecutable
	case muster.ReasonCommandNotFound:
		return cli.ExitNotFound
	case muster.ReasonOutOfMemory:
		// It is what the kernel's own kill would have left.
		return 137
	}
	if n := unix.SignalNum(al.Signal); n > 0 {
		return 128 + int(n)
	}
	if al.ExitCode != nil && *al.ExitCode > 0 && *al.ExitCode < 256 {
		return *al.ExitCode
	}
	return cli.ExitFailed
}
