package raftlog

import (
	"context"
	"io"
	"log"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// hcLogger makes raft speak slog, and softly: what it calls information is of
// use to who debugs raft, and what it warns a lone server about (an election
// that it must hold with itself) is nothing to warn about.
type hcLogger struct {
	to    *slog.Logger
	name  string
	args  []any
	alone bool
}

var _ hclog.Logger = (*hcLogger)(nil)

// unreachable are the messages with which raft says, several times a second, that another server does not
// answer. The leader says it once, by the server's name.
var unreachable = []string{
	"failed to appendEntries to", "failed to heartbeat to", "failed to pipeline appendEntries to", "failed to make requestVote RPC",
	"failed to decode incoming command", "failed to accept connection", "failed to get previous log",
}

func (h *hcLogger) Log(l hclog.Level, msg string, args ...any) {
	if slices.Contains(unreachable, msg) {
		l = hclog.Debug
	}
	h.log(l, msg, args...)
}

func (h *hcLogger) level(l hclog.Level) slog.Level {
	switch {
	case l >= hclog.Error:
		return slog.LevelError
	case l == hclog.Warn && !h.alone:
		return slog.LevelWarn
	case l == hclog.Trace:
		return slog.LevelDebug - 4
	}
	return slog.LevelDebug
}

func (h *hcLogger) log(l hclog.Level, msg string, args ...any) {
	level := h.level(l)
	if !h.to.Enabled(context.Background(), level) {
		return
	}
	if h.name != "" {
		msg = h.name + ": " + msg
	}
	h.to.Log(context.Background(), level, msg, append(h.args[:len(h.args):len(h.args)], args...)...)
}

func (h *hcLogger) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hcLogger) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hcLogger) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hcLogger) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hcLogger) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hcLogger) enabled(l hclog.Level) bool {
	return h.to.Enabled(context.Background(), h.level(l))
}

func (h *hcLogger) IsTrace() bool { return h.enabled(hclog.Trace) }
func (h *hcLogger) IsDebug() bool { return h.enabled(hclog.Debug) }
func (h *hcLogger) IsInfo() bool  { return h.enabled(hclog.Info) }
func (h *hcLogger) IsWarn() bool  { return h.enabled(hclog.Warn) }
func (h *hcLogger) IsError() bool { return h.enabled(hclog.Error) }

func (h *hcLogger) ImpliedArgs() []any { return h.args }
func (h *hcLogger) Name() string       { return h.name }

func (h *hcLogger) With(args ...any) hclog.Logger {
	c := *h
	c.args = append(h.args[:len(h.args):len(h.args)], args...)
	return &c
}

func (h *hcLogger) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

func (h *hcLogger) ResetNamed(name string) hclog.Logger {
	c := *h
	c.name = name
	return &c
}

// SetLevel does nothing: the level is slog's.
func (h *hcLogger) SetLevel(hclog.Level) {}

func (h *hcLogger) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Warn} {
		if h.enabled(l) {
			return l
		}
	}
	return hclog.Error
}

func (h *hcLogger) StandardLogger(o *hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(o), "", 0)
}

func (h *hcLogger) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return slog.NewLogLogger(h.to.Handler(), slog.LevelDebug).Writer()
}
