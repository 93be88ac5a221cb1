package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/internal/remote/bridge"
)

// dialError ends the program with a status that the server's side understands.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialCommand is how the agent's socket is reached where sshd forbids forwarding.
func dialCommand() *cobra.Command {
	return &cobra.Command{
		Use:   bridge.Verb + " SOCKET",
		Short: "Carry bytes between a unix socket and this program's input and output",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			signal.Ignore(syscall.SIGPIPE) // whoever reads may leave first
			if err := bridge.Run(cmd.Context(), args[0], os.Stdin, os.Stdout, os.Stderr); err != nil {
				return &dialError{fmt.Errorf("dial %s: %w", args[0], err)}
			}
			return nil
		},
	}
}
