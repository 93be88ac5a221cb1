package serve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
	"github.com/musterhq/muster/internal/config"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/server"
	"github.com/musterhq/muster/internal/version"
)

// devCommand makes muster dev. It is muster server with a configuration that is made up: one
// provider, whose instances are processes of this host.
func devCommand(a *cli.App, d Drivers) *cobra.Command {
	listen, level, node, noAuth := "", "", "", false
	c := a.Command("dev", "Run a server for yourself, on this host", `Its nodes are agents on this host: small ones with one core, and one with all cores. Without --data-dir everything is deleted at the end, running commands included. With it, state and running commands stay, and the next muster dev or muster server on that directory continues with them. Other commands find the server automatically.`, cobra.NoArgs, func(ctx context.Context, _ []string) error {
		cfg, err := devConfig()
		if err != nil {
			return err
		}
		cfg.DataDir, cfg.Listen, cfg.NoAuth, cfg.Log.Level = a.Given.Environment(os.Getenv).DataDir, listen, noAuth, level
		o := server.Options{Version: version.String(), NodeBinary: node, OpenBucket: d.Bucket, OpenCloud: d.Cloud, OpenIdentity: d.Identity, Ready: func(address string) {
			fmt.Fprintf(a.Stderr, "muster: ready at http://%s; in another terminal: %s run -- echo hello\n", address, typed())
			if all, err := locate.ReadContexts(); err == nil && all.Current != "" {
				fmt.Fprintf(a.Stderr, "muster: the current context is %s, so this server is used with `muster --context %s …`, or after `muster context use %s`\n", all.Current, locate.LastStarted, locate.LastStarted)
			}
			for _, line := range offHere(&cfg) {
				fmt.Fprintf(a.Stderr, "muster: %s\n", line)
			}
		}}
		// Without --data-dir nothing is worth keeping, and there are no leftovers to clean up by
		// hand.
		if cfg.DataDir == "" {
			// Short, because the paths of sockets below it are bounded.
			if cfg.DataDir, err = os.MkdirTemp("", "muster-"); err != nil {
				return err
			}
			o.Ephemeral = true
			// What is left is removed, also after an error.
			defer func() {
				if e := os.RemoveAll(cfg.DataDir); e != nil {
					fmt.Fprintf(a.Stderr, "muster: %v\n", e)
				}
			}()
		}
		config.Defaults(&cfg)
		// A made-up configuration can be wrong only by the flags that went into it.
		if problems := config.Validate(&cfg); len(problems) > 0 {
			return cli.Usage(&api.Problem{Title: "that does not go together", Errors: problems})
		}
		o.Logger = newLogger(a.Stderr, cfg.Log)
		err = serve(ctx, cfg, o)
		if err == nil && !o.Ephemeral {
			fmt.Fprint(a.Stderr, stays(cfg.DataDir))
		}
		return err
	})
	c.Flags().StringVar(&listen, "listen", config.DefaultListen, "address of the HTTP API; port 0 takes a free one")
	c.Flags().BoolVar(&noAuth, "no-auth", false, "do not require a token")
	// A person reads this log in a terminal, between other things.
	c.Flags().StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	nodeFlag(c, &node)
	return c
}

// stays says what of a data directory outlives its server, and how to end it; "" if nothing does.
func stays(dataDir string) string {
	agents, _ := filepath.Glob(filepath.Join(dataDir, "local", "i-*"))
	if len(agents) == 0 {
		return ""
	}
	again := typed() + " dev --data-dir " + term.ShellWords([]string{dataDir})
	return fmt.Sprintf("muster: %s and what runs there keep running; `%s` continues with them\n"+
		"muster: to end them too, start it again, stop the jobs (`muster job stop`), destroy the nodes (`muster node destroy`), and wait until `muster node list` is empty\n",
		muster.Counted(len(agents), "agent"), again)
}

// offHere says what does not work on this host, so that nobody finds it out by a job that waits.
func offHere(cfg *api.ServerConfig) (lines []string) {
	why := server.NoContainers(cfg)
	if why != "" {
		lines = append(lines, "containers are off: "+why)
	}
	return append(lines, server.WeakerHere(why == "")...)
}

// typed is how the user wrote this program's name: a build directory is seldom in PATH.
func typed() string {
	if strings.Contains(os.Args[0], "/") && !strings.HasSuffix(os.Args[0], ".test") {
		return os.Args[0]
	}
	return "muster"
}

// devConfig is the configuration of a server whose nodes are made of this host. Its offerings are
// shares of the host's cores and memory.
func devConfig() (api.ServerConfig, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return api.ServerConfig{}, fmt.Errorf("the host's memory: %w", err)
	}
	// GOMAXPROCS knows the limits of a container around us.
	return config.Dev(runtime.GOMAXPROCS(0), muster.Bytes(info.Totalram)*muster.Bytes(info.Unit)), nil
}
