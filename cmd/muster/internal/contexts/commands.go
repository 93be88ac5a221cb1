package contexts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/locate"
)

// Commands are muster context and those below it.
func Commands(a *cli.App) []*cobra.Command {
	c := &cobra.Command{
		Use: "context", Short: "Name servers, and choose one of them", Args: cobra.NoArgs,
		Long: term.Reflow(`Name servers, and choose one of them.

A context is a server under a name of your choice. Commands use the current one unless flags or variables name another server; --context NAME or MUSTER_CONTEXT chooses another for one command. Flags and variables that say where a server is (--addr, --data-dir, MUSTER_ADDR, MUSTER_DATA_DIR) go before the current context. The name local stands for the server of this host that you started last; without a current context it is used.

  muster context add prod --addr https://muster.example
  muster context use prod
  muster --context local job list

The contexts are in $XDG_CONFIG_HOME/muster/contexts.json, which nobody else may read.`),
	}
	c.AddCommand(listCommand(a), useCommand(a), addCommand(a), removeCommand(a))
	return []*cobra.Command{c}
}

// shown is a context as --json prints it.
type shown struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	Address string `json:"address,omitempty"`
	DataDir string `json:"data_dir,omitempty"`
	// HasToken says that a token is stored. The token itself is never printed.
	HasToken bool `json:"has_token"`
}

func listCommand(a *cli.App) *cobra.Command {
	return a.Command("list", "List contexts", "The current one is marked.", cobra.NoArgs, func(context.Context, []string) error {
		all, err := locate.ReadContexts()
		if err != nil {
			return err
		}
		current := cmp.Or(all.Current, locate.LastStarted)
		local := shown{Name: locate.LastStarted, Current: current == locate.LastStarted}
		if last, err := locate.ReadCurrent(); err == nil {
			local.Address, local.DataDir, local.HasToken = last.Address, last.DataDir, true
		}
		list := []shown{local}
		for _, c := range all.Contexts {
			one := shown{c.Name, c.Name == current, c.Address, c.DataDir, c.Token != "" || c.DataDir != ""}
			// The directory says where its server listens, or listened last.
			if s, err := locate.ReadServer(c.DataDir); c.Address == "" && err == nil {
				one.Address = s.Address
			}
			list = append(list, one)
		}
		if a.JSON {
			return a.PrintJSON(list)
		}
		var rows [][]string
		for _, c := range list {
			mark := ""
			if c.Current {
				mark = "*"
			}
			rows = append(rows, []string{mark, c.Name, cmp.Or(c.Address, "never started"), term.OrDash(c.DataDir)})
		}
		a.PrintTable([]string{"", "CONTEXT", "ADDRESS", "DATA DIRECTORY"}, rows)
		return nil
	})
}

func useCommand(a *cli.App) *cobra.Command {
	return a.Command("use NAME", "Choose the current context", "local is the server of this host that you started last.", cobra.ExactArgs(1), func(_ context.Context, args []string) error {
		return change(func(all *locate.Contexts) error {
			if !slices.Contains(all.Names(), args[0]) {
				return unknown(all, args[0])
			}
			all.Current = args[0]
			if all.Current == locate.LastStarted {
				all.Current = ""
			}
			return nil
		})
	})
}

func addCommand(a *cli.App) *cobra.Command {
	var use, stdin bool
	c := a.Command("add NAME", "Add a context, or replace one", `The server is given by --addr or --data-dir. Its token is read from stdin with --token-stdin, or else taken from --token or MUSTER_TOKEN; with --data-dir of this host none is needed. The server is not asked.`, cobra.ExactArgs(1), func(_ context.Context, args []string) error {
		made, err := made(a, args[0], stdin)
		if err != nil {
			return err
		}
		return change(func(all *locate.Contexts) error {
			all.Contexts = slices.DeleteFunc(all.Contexts, func(c locate.Context) bool { return c.Name == made.Name })
			all.Contexts = append(all.Contexts, made)
			slices.SortFunc(all.Contexts, func(x, y locate.Context) int { return cmp.Compare(x.Name, y.Name) })
			if use {
				all.Current = made.Name
			}
			return nil
		})
	})
	c.Flags().BoolVar(&use, "use", false, "make it the current context")
	c.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from stdin")
	return c
}

// maxToken is the most bytes of a token that are read.
const maxToken = 4096

// made is the context that flags and environment describe.
func made(a *cli.App, name string, stdin bool) (locate.Context, error) {
	c := locate.Context{Name: name, Address: a.Given.Address, DataDir: a.Given.DataDir}
	if err := muster.CheckName(name); err != nil {
		return c, cli.Usage(fmt.Errorf("context name %q %w", name, err))
	}
	switch {
	case name == locate.LastStarted:
		return c, cli.Usage(errors.New("the name local stands for the server of this host that you started last; choose another name"))
	case (c.Address == "") == (c.DataDir == ""):
		return c, cli.Usage(errors.New("say where the server is: --addr ADDRESS, or --data-dir DIR for a server of this host"))
	}
	// The current directory is another one when the context is used.
	if c.DataDir != "" {
		var err error
		if c.DataDir, err = filepath.Abs(c.DataDir); err != nil {
			return c, err
		}
	}
	c.Token = cmp.Or(a.Given.Token, os.Getenv("MUSTER_TOKEN"))
	if stdin {
		b, err := io.ReadAll(io.LimitReader(a.Stdin, maxToken+1))
		if err != nil {
			return c, err
		}
		if c.Token = strings.TrimSpace(string(b)); c.Token == "" || len(b) > maxToken {
			return c, cli.Usage(errors.New("stdin has no token"))
		}
	}
	return c, nil
}

func removeCommand(a *cli.App) *cobra.Command {
	return a.Command("remove NAME", "Remove a context", "The server is not asked. If it is the current one, the last started server of this host is used from then on.", cobra.ExactArgs(1), func(_ context.Context, args []string) error {
		return change(func(all *locate.Contexts) error {
			if all.Named(args[0]) == nil {
				return unknown(all, args[0])
			}
			all.Contexts = slices.DeleteFunc(all.Contexts, func(c locate.Context) bool { return c.Name == args[0] })
			if all.Current == args[0] {
				all.Current = ""
			}
			return nil
		})
	})
}

// change reads the contexts, changes them and writes them.
func change(do func(all *locate.Contexts) error) error {
	all, err := locate.ReadContexts()
	if err != nil {
		return err
	}
	if err := do(all); err != nil {
		return err
	}
	return all.Write()
}

func unknown(all *locate.Contexts, name string) error {
	return cli.Failure(fmt.Errorf("there is no context %q; there are %s", name, strings.Join(all.Names(), ", ")))
}
