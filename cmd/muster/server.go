package main

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/raftlog"
	"github.com/musterhq/muster/internal/server"
	"github.com/musterhq/muster/internal/specfile"
	"github.com/musterhq/muster/internal/version"
)

func (a *app) serverCommand() *cobra.Command {
	file, node := "", ""
	c := a.command("server -c FILE", "Run a server", `Runs until it is asked to end by SIGTERM or Ctrl-C. What runs on nodes goes on without
it, and is found again when it is started on the same data directory. The configuration
is read strictly: muster config check -c FILE tells what is wrong with it.`, cobra.NoArgs, func(ctx context.Context, _ []string) error {
		if file == "" {
			return usage(errors.New("which configuration? give it with -c, or use `muster dev`"))
		}
		config, err := specfile.ConfigAt(file)
		if err != nil {
			return err
		}
		return serve(ctx, *config, server.Options{Version: version.String(), Logger: newLogger(a.stderr, config.Log), NodeBinary: node})
	})
	c.Flags().StringVarP(&file, "config", "c", "", "the configuration file")
	nodeFlag(c, &node)
	return c
}

// nodeFlag lets a server be told where the program for nodes is.
func nodeFlag(c *cobra.Command, node *string) {
	c.Flags().StringVar(node, "node-binary", "", "the muster-node program (default: beside this one, else in PATH)")
}

// serve runs a server until a signal comes; that is a good end.
func serve(ctx context.Context, config api.ServerConfig, o server.Options) error {
	err := server.Run(ctx, config, o)
	// While it runs, the log ends the process itself; this is what it met while it was opened.
	var disk *raftlog.StorageError
	if errors.As(err, &disk) {
		return &exit{exitStorage, err}
	}
	if err != nil && !(ctx.Err() != nil && errors.Is(err, context.Canceled)) {
		return &exit{exitFailed, err}
	}
	return nil
}

// newLogger logs as the configuration says.
func newLogger(w io.Writer, c api.LogConfig) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked; info if it is not given
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
