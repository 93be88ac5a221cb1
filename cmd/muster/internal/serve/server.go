package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/internal/cluster"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/server"
	"github.com/musterhq/muster/internal/specfile"
	"github.com/musterhq/muster/internal/version"
	"github.com/musterhq/muster/internal/wait"
)

// serverCommand makes muster server. The file is read again at each SIGHUP, by the same strict
// reader; a wrong file changes nothing.
func serverCommand(a *cli.App, d Drivers) *cobra.Command {
	file, node, tokenFile := "", "", ""
	var start cluster.Start
	var token string
	c := a.Command("server -c FILE", "Run a server", `Runs until SIGTERM or Ctrl-C. Work on nodes keeps running without it, and is found again when the server starts on the same data directory. The configuration is read strictly: muster config check -c FILE shows what is wrong with it. SIGHUP reloads it: pools, providers, retention and quotas change at once, on the server that leads; the log says what changed and what needs a restart. An invalid file changes nothing.`, cobra.NoArgs, func(ctx context.Context, _ []string) error {
		// There is no default place: which configuration a server has is too much to guess.
		if file == "" {
			return cli.Usage(errors.New("which configuration? give it with -c, or use `muster dev`"))
		}
		config, err := specfile.ConfigAt(file)
		if err != nil {
			return err
		}
		if start.Token, err = joinToken(&start, config, token, tokenFile); err != nil {
			return err
		}
		reload, stop := reloads(a)
		defer stop()
		return serve(ctx, *config, server.Options{
			OpenBucket: d.Bucket, OpenCloud: d.Cloud, OpenIdentity: d.Identity, Start: start,
			Version: version.String(), Logger: newLogger(a.Stderr, config.Log), NodeBinary: node,
			Read: func() (*api.ServerConfig, error) { return specfile.ConfigAt(file) }, Reload: reload,
		})
	})
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	nodeFlag(c, &node)
	c.Flags().BoolVar(&start.Bootstrap, "bootstrap", false, "become the first server of a cluster (docs/servers.md); without effect on a server of one")
	c.Flags().StringVar(&start.Join, "join", "", "join the cluster of the server at this address (its cluster.address); without effect on a server of one")
	c.Flags().StringVar(&token, "token", "", "the join token, of muster servers join-token; better --token-file or the environment variable "+joinTokenVariable)
	c.Flags().StringVar(&tokenFile, "token-file", "", "a file with the join token")
	return c
}

// joinTokenVariable is the environment variable that may have the join token: arguments can be read by all
// users of a host.
const joinTokenVariable = "MUSTER_JOIN_TOKEN"

// joinToken is the token with which the server joins, and says what is wrong with the options.
func joinToken(start *cluster.Start, config *api.ServerConfig, token, file string) (muster.Secret, error) {
	switch {
	case config.Cluster == nil && (start.Bootstrap || start.Join != ""):
		return muster.Secret{}, cli.Usage(errors.New("--bootstrap and --join are for servers whose configuration has cluster: with an address for the others (docs/servers.md)"))
	case start.Bootstrap && start.Join != "":
		return muster.Secret{}, cli.Usage(errors.New("--bootstrap makes the first server of a cluster and --join a further one; use one of them"))
	case start.Join == "" && (token != "" || file != ""):
		return muster.Secret{}, cli.Usage(errors.New("a join token goes with --join"))
	case start.Join == "":
		return muster.Secret{}, nil
	case token != "" && file != "":
		return muster.Secret{}, cli.Usage(errors.New("--token and --token-file both give the join token; use one of them"))
	case file != "":
		b, err := os.ReadFile(file)
		if err != nil {
			return muster.Secret{}, cli.Usage(fmt.Errorf("--token-file: %w", err))
		}
		token = strings.TrimSpace(string(b))
	}
	token = cmp.Or(token, os.Getenv(joinTokenVariable))
	// A server that has joined needs none, so a missing one is only an error where it is used.
	return muster.NewSecret(token), nil
}

// reloads returns a channel that has something after each SIGHUP, which ends nothing any more, and
// a function to call at the end. Several signals in a row may be one: the file is read after the
// last of them. Other commands end with SIGHUP, as the terminal goes away with which they were
// started.
func reloads(a *cli.App) (reload <-chan struct{}, stop func()) {
	// The app's channel must not hear SIGHUP any more, or the server would end.
	signal.Stop(a.Signals)
	signal.Notify(a.Signals, os.Interrupt, syscall.SIGTERM)
	hup, out, done := make(chan os.Signal, 1), make(chan struct{}, 1), make(chan struct{})
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-hup:
				wait.Poke(out)
			}
		}
	}()
	return out, func() { signal.Stop(hup); close(done) }
}

// nodeFlag lets a server be told where the program for nodes is. The default is right for a package
// that was installed and for a build directory.
func nodeFlag(c *cobra.Command, node *string) {
	c.Flags().StringVar(node, "node-binary", "", "the muster-node program (default: beside this one, else in PATH)")
}

// serve runs a server until a signal comes, which is a good end. An error of the server's storage
// has an exit code of its own, so that whatever supervises it does not start it again: that would
// not help. All other errors are exit code 1, because the codes that commands have for a server's
// answers would say something else here.
func serve(ctx context.Context, config api.ServerConfig, o server.Options) error {
	if err := server.UseNetwork(&config); err != nil {
		return cli.Failure(err)
	}
	err := server.Run(ctx, config, o)
	// While it runs, the log ends the process itself; this is what it met while it was opened.
	var disk *raftlog.StorageError
	if errors.As(err, &disk) || errors.Is(err, raftlog.ErrNewer) {
		return cli.ExitWith(cli.ExitStorage, err)
	}
	// To start it again would not help either.
	if errors.Is(err, cluster.ErrRemoved) {
		return cli.ExitWith(cli.ExitUsage, err)
	}
	// A signal ends the context, and whatever error comes of that is no error.
	if err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return cli.Failure(err)
	}
	return nil
}

// newLogger logs as the configuration says. A level that is not known was refused before.
func newLogger(w io.Writer, c api.LogConfig) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked; info if it is not given
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
