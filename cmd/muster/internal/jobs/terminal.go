package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/inside"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// A command that has the user's terminal is an execution, since only those have terminals. The
// job's own command holds the sandbox for it, and ends as it does. The two meet at a named pipe: its
// end of file tells the holder that the execution is gone, whatever became of it.

// pipeDirectories are where the pipe may be, as words of a shell. The first is the sandbox's own; an
// image may have none that its user can write to.
const pipeDirectories = `"${TMPDIR:-/tmp}" /tmp . /dev/shm`

// holdScript is the job's own command. It waits a minute for the execution, which is a request away.
const holdScript = `for d in ` + pipeDirectories + `; do mkfifo -m 600 "$d/$1" 2>/dev/null && f=$d/$1 && break; done
[ -n "$f" ] || { echo "none of \$TMPDIR, /tmp, the work directory and /dev/shm is writable, or mkfifo is missing" >&2; exit 126; }
(sleep 60; echo absent >"$f") & t=$!
exec 3<"$f"
read -r said <&3; kill "$t" 2>/dev/null
[ "$said" = attached ] && read -r code <&3 || code=129
rm -f "$f"
exit "$code"`

// attachScript is the execution. Signals of the terminal are for the command: the shell has empty
// handlers, which the command does not inherit.
const attachScript = `n=$1; shift; i=0; f=
while [ -z "$f" ]; do
for d in ` + pipeDirectories + `; do [ -p "$d/$n" ] && f=$d/$n && break; done
[ -n "$f" ] && break; i=$((i+1)); [ $i -gt 100 ] && exit 126; sleep 0.1
done
exec 9>"$f"; echo attached >&9
trap : HUP INT QUIT TERM
"$@" 9>&-; c=$?
echo $c >&9; exit $c`

// giveTerminal makes a job's command the one that holds its sandbox, and returns the command of the
// execution that gets the terminal. Mistakes are found here, before anything is submitted.
func (r *runner) giveTerminal(spec *api.JobSpec) (attached []string, err error) {
	switch {
	case r.detach:
		return nil, cli.Usage(errors.New("-t has no terminal with --detach; leave -t out, and enter it later with `muster exec -it JOB -- sh`"))
	case r.app.JSON:
		return nil, cli.Usage(errors.New("--json has no terminal; leave -t out"))
	case spec.Count > 1:
		return nil, cli.Usage(fmt.Errorf("-t gives the terminal to one member, and count is %d", spec.Count))
	case spec.Restart.Attempts > 1:
		return nil, cli.Usage(errors.New("-t runs the command once; leave --attempts out"))
	case len(spec.Entrypoint) > 0:
		return nil, cli.Usage(errors.New("-t starts the command without an entrypoint; leave --entrypoint out, and name the program"))
	case spec.Type != "" && spec.Type != string(muster.JobBatch):
		return nil, cli.Usage(fmt.Errorf("-t is for jobs of type batch, and this one is of type %s; enter it with `muster exec -it JOB -- sh`", spec.Type))
	case len(spec.Command) == 0:
		return nil, cli.Usage(errors.New("-t needs a command; that of the image alone is not known here"))
	case term.TerminalOf(r.app.Stdin) == nil:
		return nil, cli.Usage(errors.New("-t needs a terminal, and stdin is none; `muster run -i` gives stdin to the command"))
	}
	pipe := ".muster-tty-" + client.NewKey()
	attached = append([]string{"sh", "-c", attachScript, "sh", pipe}, spec.Command...)
	// Lists of jobs show the beginning of a command, so that begins with what was asked for.
	title := strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return ' '
	}, term.ShellWords(spec.Command))
	spec.Command = []string{"sh", "-c", titleMark + title + "\n" + holdScript, "sh", pipe}
	if spec.Image != "" {
		// The image's entrypoint would be put before sh.
		spec.Entrypoint = []string{""}
	}
	return attached, nil
}

// titleMark begins the first line of what the holder runs; behind it is the command of the execution.
const titleMark = "# with a terminal: "

// commandText is a command as lists show it. That of a job with a terminal is the one that has the
// terminal.
func commandText(words []string) string {
	if len(words) > 2 && words[0] == "sh" {
		if title, ok := strings.CutPrefix(words[2], titleMark); ok {
			title, _, _ = strings.Cut(title, "\n")
			return title
		}
	}
	return term.ShellWords(words)
}

// attach executes the command with the terminal, and follows the job to its end. The error has the
// command's exit code.
func (r *runner) attach(ctx context.Context, cl *client.Client, key muster.JobKey, before *follower) error {
	x := &inside.Executor{App: r.app, Stdin: true, TTY: true}
	err := x.Run(ctx, append([]string{key.String()}, r.attached...))
	if client.IsUnreachable(err) {
		return err
	}
	if cli.ExitCode(err) == cli.ExitInterrupted {
		// The user has left. On a node that is lost the job would be tried again, for nobody.
		_, _ = cl.Stop(ctx, key, "its terminal was closed")
		return err
	}
	// The holder ends at once. Whoever does not want to wait for that leaves with any signal.
	f := &follower{cl: cl, key: key, uid: before.uid, version: before.version, index: -1, out: &printer{screen: before.out.screen}}
	if ended := f.follow(ctx, "", r.app.Signals, func(os.Signal) bool { return false }); ended != nil && err == nil {
		err = cli.WithHint(ended, fmt.Sprintf("the command has ended; see the job with `muster job show %s`", key))
	}
	if err == nil && f.job != nil && f.job.Outcome != string(muster.JobSucceeded) {
		return f.ending(r.quiet, false, 0)
	}
	return err
}
