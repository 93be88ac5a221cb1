package fake

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
)

// step is one thing that a command does.
type step struct{ do func(*body) *ending }

// parse reads a command; the error is a failure to start.
func parse(command []string) ([]step, error) {
	if len(command) == 0 {
		return nil, failure(muster.FailureUser, muster.ReasonSpec, "the command is empty")
	}
	if command[0] == "fail" && len(command) >= 4 {
		return nil, failure(muster.FailureClass(command[1]), muster.Reason(command[2]), "%s", command[3])
	}
	var steps []step
	for len(command) > 0 {
		end := 0
		for end < len(command) && command[end] != ";" {
			end++
		}
		if end > 0 {
			s, err := parseStep(command[0], command[1:end])
			if err != nil {
				return nil, err
			}
			steps = append(steps, s)
		}
		command = command[min(end+1, len(command)):]
	}
	return steps, nil
}

// shape is how many arguments a word takes, least and most.
func shape(word string) (least, most int, ok bool) {
	switch word {
	case "exit", "signal", "sleep", "deaf", "until", "busy", "stdout", "stderr":
		return 1, 1, true
	case "print":
		return 1, 2, true
	case "polite", "write":
		return 2, 2, true
	case "env", "pwd", "hog", "die":
		return 0, 0, true
	}
	return 0, 0, false
}

func parseStep(word string, args []string) (step, error) {
	least, most, ok := shape(word)
	if !ok {
		return step{}, failure(muster.FailureUser, muster.ReasonCommandNotFound, "command %q was not found", word)
	}
	if len(args) < least || len(args) > most {
		return step{}, failure(muster.FailureUser, muster.ReasonSpec, "fake command: %s takes %d words, got %d", word, least, len(args))
	}
	switch word {
	case "sleep", "deaf", "busy", "polite":
		return parseWait(word, args)
	case "exit", "print":
		return parseNumber(word, args)
	case "signal":
		sig := unix.SignalNum(args[0])
		if sig == 0 {
			return step{}, failure(muster.FailureUser, muster.ReasonSpec, "fake command: no signal %q", args[0])
		}
		return always(&ending{signal: sig}), nil
	case "until":
		return step{func(b *body) *ending { return b.until(args[0]) }}, nil
	case "write":
		return step{func(b *body) *ending { return b.writeFile(args[0], args[1]) }}, nil
	case "stdout":
		return printing(func(b *body) { b.stdout.write([]byte(args[0])) }), nil
	case "stderr":
		return printing(func(b *body) { b.stderr.write([]byte(args[0])) }), nil
	case "env":
		return printing((*body).printEnv), nil
	case "pwd":
		return printing(func(b *body) { b.stdout.write([]byte(b.config.Work + "\n")) }), nil
	case "hog":
		return step{func(b *body) *ending {
			if b.config.Resources.Memory == 0 {
				return nil
			}
			return &ending{signal: syscall.SIGKILL, hogged: true}
		}}, nil
	}
	return always(&ending{signal: syscall.SIGKILL, died: true}), nil // die
}

func parseWait(word string, args []string) (step, error) {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return step{}, failure(muster.FailureUser, muster.ReasonSpec, "fake command: %v", err)
	}
	term := &ending{signal: syscall.SIGTERM}
	switch word {
	case "busy":
		return step{func(b *body) *ending { return b.busy(d) }}, nil
	case "deaf":
		term = nil
	case "polite":
		code, err := number(args[1])
		if err != nil {
			return step{}, err
		}
		term = &ending{exit: code}
	}
	return step{func(b *body) *ending { return b.sleep(d, term) }}, nil
}

func parseNumber(word string, args []string) (step, error) {
	n, err := number(args[0])
	if err != nil {
		return step{}, err
	}
	if word == "exit" {
		return always(&ending{exit: n}), nil
	}
	return printing(func(b *body) {
		to := &b.stdout
		if len(args) == 2 && args[1] == "stderr" {
			to = &b.stderr
		}
		to.print(n)
	}), nil
}

func always(e *ending) step { return step{func(*body) *ending { return e }} }

func printing(print func(*body)) step {
	return step{func(b *body) *ending {
		print(b)
		return nil
	}}
}
