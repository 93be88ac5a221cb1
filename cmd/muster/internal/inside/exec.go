package inside

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// execCommand makes muster exec. It does not go through App.Command: signals are for the command
// that runs inside, once there is one.
func execCommand(a *cli.App) *cobra.Command {
	x := &Executor{App: a}
	c := &cobra.Command{
		Use:   "exec [flags] ALLOC [--] COMMAND [ARGUMENT...]",
		Short: "Run a command beside a running one",
		Long: term.Reflow(`Run a command in the sandbox of a running allocation, beside its own command.

` + cli.TargetHelp + `

  muster exec -it web -- sh                         a shell
  muster exec web/3 -- cat /etc/os-release          in member 3
  muster exec -i web -- tar x -C /srv < files.tar   with a stdin
  muster exec --detach web -- make                  in the background; its id is printed
  muster exec --attach ID web                       attach to it: its output, as far as it is kept
  muster exec --list web                            list executions

The command is passed as it is: for pipes and variables, run a shell. It has a stdin with
-i only. Its stdout and stderr are printed as they come; a terminal (-t) has stdout alone.
Status messages go to stderr and begin with "muster:". A slow reader slows the command down, and disconnecting ends it, unless it is detached: then its output is kept on the node, and --attach reads it as often as you like, across restarts of the server.

Ctrl-C is sent to the command: through its terminal with -it, as INT without; twice within two seconds disconnects. The same holds for --attach: to leave a detached execution running, end this command with HUP.

Exit code: the command's own, 128 + N if signal N ended it, 124 if --timeout ended it, 126 if it could not be
executed, 127 if it was not found. 141 if stdout is a pipe that was closed. 130 if you disconnected. Muster's own errors as with all
commands: 1, 2, 4, and 3 if the server went away in the middle, with a line on stderr. With --json the
command's output and end are printed as one object when it has ended.`),
		Args: cobra.ArbitraryArgs,
	}
	f := c.Flags()
	f.SetInterspersed(false) // what follows the command is its own
	f.BoolVarP(&x.Stdin, "interactive", "i", false, "give the command your stdin")
	f.BoolVarP(&x.TTY, "tty", "t", false, "allocate a terminal")
	f.BoolVarP(&x.detach, "detach", "d", false, "start it in the background and print its id")
	f.StringVar(&x.attach, "attach", "", "attach to this detached execution instead of starting one")
	f.BoolVar(&x.list, "list", false, "list executions instead of starting one")
	f.StringVar(&x.signal, "signal", "", "send this signal, for example TERM, to the execution of --attach, and exit")
	f.StringVarP(&x.User, "user", "u", "", "user in a container: NAME, UID, NAME:GROUP or UID:GID (default: as the allocation's command)")
	f.StringVarP(&x.Workdir, "workdir", "w", "", "working directory (default: that of the allocation's command)")
	f.StringArrayVarP(&x.Env, "env", "e", nil, "environment variable NAME=VALUE, or NAME to pass your own; may be repeated")
	f.StringVar(&x.Timeout, "timeout", "", "stop it after this time, for example 10m")
	f.StringVar(&x.killGrace, "kill-grace", "", "time between TERM and KILL")
	f.StringVar(&x.id, "id", "", "an id that you choose, to attach to")
	cli.DurationVar(f, &x.patience, "patience", cli.FollowPatience, "with --attach: how long to wait for a server that does not answer")
	a.NamespaceFlag(c, "namespace of the job")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		// -h behind the allocation is a flag like others, and cobra has not seen it.
		args, err := ExecArgs(cmd, args)
		if err != nil {
			return err
		}
		if help, _ := f.GetBool("help"); help {
			return cmd.Help()
		}
		return x.Run(cmd.Context(), args)
	}
	return c
}

// ExecArgs returns the allocation and the command. Flags are taken behind the allocation as well,
// up to the command, because that is where people think of them, and so `--` may be left out too.
func ExecArgs(c *cobra.Command, args []string) ([]string, error) {
	if len(args) < 2 || !strings.HasPrefix(args[1], "-") || c.ArgsLenAtDash() == 0 {
		return args, nil
	}
	// `muster exec ALLOC -- COMMAND`: the flags came before.
	if args[1] == "--" {
		return slices.Delete(slices.Clone(args), 1, 2), nil
	}
	if err := c.Flags().Parse(args[1:]); err != nil {
		return nil, cli.Usage(cli.WithHint(err, "write -- before the command"))
	}
	return append([]string{args[0]}, c.Flags().Args()...), nil
}

// Executor is one use of muster exec, or of muster x, which sets some of it by flags of its own.
type Executor struct {
	// App is where it reads and prints.
	App *cli.App
	// Stdin gives the command the user's stdin.
	Stdin bool
	// TTY gives the command the user's terminal.
	TTY bool
	// detach starts an execution and leaves it. With attach an execution is joined, by its id; with
	// list list executions are listed; signal is sent to the one that attach names. At most
	// one of them is meant.
	detach bool
	list   bool
	attach string
	signal string
	// User, Workdir and Env are the command's; "" and nil are as its allocation has them.
	User    string
	Workdir string
	Env     []string
	// Timeout and killGrace are durations as users write them; "" for none and for the default.
	Timeout   string
	killGrace string
	// id is chosen by the user, so that a script can join the execution without reading it; "" lets
	// the server choose.
	id string
	// patience is how long a joined execution waits for a server that is away.
	patience time.Duration
}

// Run does what flags and arguments ask for. The first argument names the allocation, the others
// are the command. The error has the command's exit code.
func (x *Executor) Run(ctx context.Context, args []string) error {
	req, err := x.request(args)
	if err != nil {
		return err
	}
	if err := x.conflicts(args); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Until something runs that could take signals, they end this command. begun closes started,
	// and waits until the goroutine has let go of the signals: none may be lost between the two.
	started := make(chan struct{})
	yielded := make(chan struct{})
	go func() {
		defer close(yielded)
		select {
		case <-x.App.Signals:
			cancel(cli.ErrInterrupted)
		case <-started:
		case <-ctx.Done():
		}
	}()
	err = x.work(ctx, args[0], req, func() {
		close(started)
		<-yielded
	})
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
		return cli.ErrInterrupted
	}
	return err
}

// usualTerminals are the values of TERM that are passed on: images have descriptions of these. With
// another one programs would refuse to draw, so a command gets xterm then, as without any.
var usualTerminals = []string{"xterm", "xterm-256color", "screen", "screen-256color", "tmux", "tmux-256color", "linux", "vt100", "vt220", "rxvt"}

// request is what the flags and the command ask for. Mistakes are found here, before the server is
// asked.
func (x *Executor) request(args []string) (api.ExecRequest, error) {
	req := api.ExecRequest{Workdir: x.Workdir, User: x.User, TTY: x.TTY, Stdin: x.Stdin, ID: x.id}
	// Those two are about executions that there are, and start none.
	other := x.list || x.attach != ""
	switch {
	case len(args) == 0:
		return req, cli.ErrNoAlloc("muster exec -it JOB -- sh")
	case len(args) > 1 && other:
		return req, cli.Usage(fmt.Errorf("with --attach and --list there is no command; %q is one", term.ShellWords(args[1:])))
	case len(args) == 1 && !other:
		return req, cli.Usage(fmt.Errorf("there is no command; write it behind the allocation, as in `muster exec -it %s -- sh`", args[0]))
	}
	// The words are passed as they are: no shell takes them apart.
	req.Command = args[1:]
	// An empty word is a variable that was not set, most often.
	if len(req.Command) > 0 && req.Command[0] == "" {
		return req, cli.Usage(errors.New("the command is an empty word"))
	}
	var err error
	if req.Env, err = cli.ParseEnv(x.Env); err != nil {
		return req, cli.Usage(err)
	}
	if kind := os.Getenv("TERM"); x.TTY && req.Env["TERM"] == "" && slices.Contains(usualTerminals, kind) {
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env["TERM"] = kind
	}
	for _, q := range []struct {
		flag, value string
		to          *api.Duration
	}{{"timeout", x.Timeout, &req.Timeout}, {"kill-grace", x.killGrace, &req.KillGrace}} {
		if q.value == "" {
			continue
		}
		if *q.to, err = api.ParseDuration(q.value); err != nil {
			return req, cli.Usage(fmt.Errorf("--%s: %w", q.flag, err))
		}
	}
	return req, nil
}

// conflicts refuses flags that do not go together.
func (x *Executor) conflicts(args []string) error {
	switch {
	case x.signal != "" && x.attach == "":
		return cli.Usage(errors.New("--signal needs --attach ID: the execution that it is sent to"))
	case x.detach && x.attach != "":
		return cli.Usage(errors.New("--detach starts an execution and --attach joins one; give one of them"))
	case x.App.JSON && x.TTY:
		return cli.Usage(errors.New("--json has no terminal; leave -t out"))
	// Without a terminal here there is none to give: the command would draw into a file.
	case x.TTY && !x.detach && x.attach == "" && term.TerminalOf(x.App.Stdin) == nil:
		return cli.Usage(cli.WithHint(errors.New("-t needs a terminal, and stdin is none"), fmt.Sprintf("leave -t out when stdin is redirected, as in `muster exec -i %s -- …`", args[0])))
	}
	return nil
}

// work does what was asked. It calls begun when an execution runs: from then on signals are for
// that. Begun returns when nobody else takes them any more.
func (x *Executor) work(ctx context.Context, name string, req api.ExecRequest, begun func()) error {
	cl, err := x.App.Connect()
	if err != nil {
		return err
	}
	t, err := x.App.FindTarget(ctx, cl, name)
	if err != nil {
		return err
	}
	// A sandbox that has ended takes nothing, and how it ended is the better answer.
	if err := t.CheckRunning(time.Now()); err != nil {
		return err
	}
	switch {
	case x.list:
		return t.Explain(ctx, cl, x.printExecutions(ctx, cl, t))
	case x.signal != "":
		return t.Explain(ctx, cl, cl.SignalExecution(ctx, t.ID, x.attach, x.signal))
	case x.attach != "":
		return x.join(ctx, cl, t, begun)
	// A detached execution needs nobody: the id is all that is printed.
	case x.detach:
		done, err := cl.StartExec(ctx, t.ID, req)
		if err != nil {
			return x.failed(ctx, cl, t, &req, err)
		}
		if x.App.JSON {
			return x.App.PrintJSON(done)
		}
		_, err = fmt.Fprintln(x.App.Stdout, done.ID)
		return err
	case x.App.JSON:
		return x.result(ctx, cl, t, req)
	}
	s := newSession(x, t)
	// The command's first picture should fit already.
	if req.TTY {
		req.Rows, req.Cols = s.terminal.Size()
	}
	e, err := cl.Exec(ctx, t.ID, req)
	if err != nil {
		return x.failed(ctx, cl, t, &req, err)
	}
	begun()
	return s.run(ctx, e)
}

// failed says why a command could not be started, with the exit code that shells have for it. A
// command that was given as one quoted word is a frequent mistake, so it is pointed out.
func (x *Executor) failed(ctx context.Context, cl *client.Client, t *cli.Target, req *api.ExecRequest, err error) error {
	switch client.Code(err) {
	case api.CodeCommandNotFound:
		if len(req.Command) == 1 && strings.ContainsAny(req.Command[0], " \t") {
			err = cli.WithHint(err, fmt.Sprintf("it was given as one word: leave the quotes out, or run a shell, as in `muster exec %s -- sh -c %s`", t.Name, term.ShellWords(req.Command)))
		}
		return cli.ExitWith(cli.ExitNotFound, err)
	// It is there and cannot be run: no permission, or of another kind of machine.
	case api.CodeNotExecutable:
		return cli.ExitWith(cli.ExitNotExecutable, err)
	}
	// The server did not answer, so the allocation cannot be asked about either.
	if client.IsUnreachable(err) {
		return err
	}
	return t.Explain(ctx, cl, err)
}

// join follows a detached execution, over lost connections as well. It begins with the oldest
// output that the node still keeps.
func (x *Executor) join(ctx context.Context, cl *client.Client, t *cli.Target, begun func()) error {
	// It is looked up first: whether it has a terminal decides how the keys are treated.
	info, err := cl.Execution(ctx, t.ID, x.attach)
	if client.IsNotFound(err) {
		return cli.WithHint(err, fmt.Sprintf("`muster exec --list %s` shows list executions", t.Name))
	}
	if err != nil {
		return t.Explain(ctx, cl, err)
	}
	s := newSession(x, t)
	s.detached = true
	// Without the user's stdin the execution is only watched, and the keys stay ours.
	s.tty = info.TTY && x.Stdin && s.terminal != nil
	oldest := api.ExecAttach{Attach: x.attach, Stdout: -1, Stderr: -1, Stdin: x.Stdin}
	// A connection that is lost is made again where it broke off. What was read by somebody else
	// meanwhile may be gone.
	s.again = func(ctx context.Context, e *client.Execution) (*client.Execution, error) {
		cl := cl.Patient(x.patience)
		next, err := cl.Attach(ctx, t.ID, api.ExecAttach{Attach: x.attach, Stdout: e.Offset(client.Stdout), Stderr: e.Offset(client.Stderr), Stdin: x.Stdin})
		if client.Code(err) == string(muster.FaultTooOld) { // somebody else has read on
			if next, err = cl.Attach(ctx, t.ID, oldest); err == nil {
				s.say("some of the output is not kept any more: stdout goes on at byte %d and stderr at %d", next.Offset(client.Stdout), next.Offset(client.Stderr))
			}
		}
		return next, err
	}
	// The first time all is wanted that is still kept; -1 says so.
	e, err := cl.Attach(ctx, t.ID, oldest)
	if err != nil {
		return t.Explain(ctx, cl, err)
	}
	begun()
	// What was dropped before is said, so that nobody takes the rest for all.
	if n, m := e.Offset(client.Stdout), e.Offset(client.Stderr); n+m > 0 {
		s.say("the output begins where it is still kept: stdout at byte %d, stderr at %d", n, m)
	}
	return s.run(ctx, e)
}

// result runs a command to its end and prints what it came to as JSON. Stdin is read whole first,
// for it goes in the request.
func (x *Executor) result(ctx context.Context, cl *client.Client, t *cli.Target, req api.ExecRequest) error {
	if req.Stdin {
		in, err := io.ReadAll(io.LimitReader(x.App.Stdin, api.ExecMaxMessage+1))
		if err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
		// One request carries all of it, and the server bounds requests.
		if len(in) > api.ExecMaxMessage {
			return cli.Usage(errors.New("with --json stdin has at most 1 MiB; leave --json out"))
		}
		req.InputBase64 = in
	}
	req.Stdin = false
	res, err := cl.RunExec(ctx, t.ID, req)
	if err != nil {
		return x.failed(ctx, cl, t, &req, err)
	}
	if err := x.App.PrintJSON(res); err != nil {
		return err
	}
	return x.ended(&api.ExecEnd{ExitCode: res.ExitCode, Signal: res.Signal, TimedOut: res.TimedOut, Reason: res.Reason})
}

// ended makes an error with the exit code of how a command ended; nil for 0. It says only what the
// command itself could not say.
func (x *Executor) ended(end *api.ExecEnd) error {
	// timeout(1) has this code for it, and people look for it.
	if end.TimedOut {
		return cli.ExitWith(cli.ExitTimeout, fmt.Errorf("the command ran into its time limit%s", term.SuffixIf(x.Timeout != "", " of "+x.Timeout)))
	}
	// Shells say 128 + N for a signal; a server may have done so already.
	code := end.ExitCode
	if end.Signal != "" && code < 128 {
		if n := term.SignalNumber(end.Signal); n > 0 {
			code = 128 + n
		}
	}
	// An exit code of a process has a byte. Others would come out as something else.
	if code < 0 || code > 255 {
		code = cli.ExitFailed
	}
	if end.Reason != "" {
		// It was ended by somebody, and a script must not take it for success.
		code = cmp.Or(code, cli.ExitFailed)
		return cli.ExitWith(code, fmt.Errorf("the command was ended: %s", end.Reason))
	}
	if code == 0 {
		return nil
	}
	return cli.ExitSilently(code)
}

// printExecutions prints the executions of an allocation that its node knows.
func (x *Executor) printExecutions(ctx context.Context, cl *client.Client, t *cli.Target) error {
	list, err := cl.Executions(ctx, t.ID)
	if err != nil {
		return err
	}
	if x.App.JSON {
		return x.App.PrintJSON(list)
	}
	// A line on stderr, so that a script counts no rows.
	if len(list.Executions) == 0 {
		fmt.Fprintf(x.App.Stderr, "muster: %s has no executions\n", term.Clean(t.Describe()))
		return nil
	}
	now := time.Now()
	var rows [][]string
	for i := range list.Executions {
		e := &list.Executions[i]
		// How it ended: the time limit says more than the signal, and that more than the code.
		status, took := "running", "-"
		if !e.Running {
			status = "ended"
			if e.ExitCode != nil {
				status = fmt.Sprintf("exit %d", *e.ExitCode)
			}
			if e.Signal != "" {
				status = e.Signal
			}
			if e.TimedOut {
				status = "timeout"
			}
		}
		if e.Started != nil {
			end := now
			if e.Ended != nil {
				end = *e.Ended
			}
			took = term.Brief(end.Sub(*e.Started))
		}
		// An attached one ends with its client, so what is left of it is of interest only for a
		// while.
		kind := "attached"
		if e.Detached {
			kind = "detached"
		}
		rows = append(rows, []string{e.ID, status, kind, took, e.Reason})
	}
	x.App.PrintTable([]string{"EXECUTION", "STATUS", "KIND", "RAN", "REASON"}, rows)
	return nil
}

// leftText says what becomes of the command after the client has left. Sent is the signal that was
// passed on to it last, as TERM; "" if none was. One that got a signal may end because of it:
// nothing is promised then.
func (x *Executor) leftText(detached bool, name, sent string) string {
	// The hint joins it again: whether it has ended is seen then.
	if detached && sent != "" {
		return fmt.Sprintf("left; %s was sent to the execution, which may end: `muster exec --attach %s %s`", sent, x.attach, name)
	}
	if detached {
		return fmt.Sprintf("disconnected; the execution keeps running: `muster exec --attach %s %s`", x.attach, name)
	}
	return "left; the command is ended"
}

// errPipe says that whoever read our stdout has left. Nothing is printed: there is nobody to read
// it.
var errPipe = cli.ExitSilently(cli.ExitBrokenPipe)
