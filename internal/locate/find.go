package locate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/musterhq/muster"
)

// Given is what a user said of where the server is, in flags or else in the environment.
type Given struct {
	Address string // --addr, MUSTER_ADDR
	Token   string // --token, MUSTER_TOKEN
	DataDir string // --data-dir, MUSTER_DATA_DIR
	Context string // --context, MUSTER_CONTEXT
}

// Environment fills in what was not given by what the environment says. An
// address or a context on the command line goes before a data directory in the environment.
func (g Given) Environment(getenv func(string) string) Given {
	if g.Token == "" {
		g.Token = getenv("MUSTER_TOKEN")
	}
	if g.Address == "" && g.DataDir == "" && g.Context == "" {
		g.Address = getenv("MUSTER_ADDR")
		g.DataDir = getenv("MUSTER_DATA_DIR")
		if g.Address == "" && g.DataDir == "" {
			g.Context = getenv("MUSTER_CONTEXT")
		}
	}
	return g
}

// Place is where a server is, and what lets a client in.
type Place struct {
	Address string
	Token   muster.Secret // none for a server without authentication
	DataDir string        // "" if not known
	// From says how it was found, for messages: "--addr", or the file's path.
	From string
}

// ErrUnknown says that nothing tells where a server is.
var ErrUnknown = errors.New("no server is known here; start one with `muster dev`, or give --addr, --data-dir or MUSTER_ADDR")

// ErrContext says that the context that was given is none, or not all that was given.
var ErrContext = errors.New("wrong context")

// badContext is ErrContext in other words.
type badContext string

func (b badContext) Error() string        { return string(b) }
func (b badContext) Is(target error) bool { return target == ErrContext }

// unknown is ErrUnknown in other words.
type unknown string

func (u unknown) Error() string        { return string(u) }
func (u unknown) Is(target error) bool { return target == ErrUnknown }

// Find is where the server is: the given address, else that of the given data directory, else that
// of the given or the current context, else of the server that this user started last, else of that of
// the package's unit.
func Find(g Given) (Place, error) {
	if g.Context != "" && (g.Address != "" || g.DataDir != "") {
		return Place{}, badContext("a context says where the server is; give it, or an address or a data directory")
	}
	p := Place{Address: g.Address, DataDir: g.DataDir, Token: muster.NewSecret(g.Token), From: "the given address"}
	switch {
	case p.Address != "":
	case p.DataDir != "":
		var err error
		if p.Address, p.From, err = addressIn(p.DataDir); err != nil {
			return p, err
		}
	default:
		in, used, err := inContext(g.Context, p)
		if err != nil {
			return p, err
		}
		if used {
			p = in
			break
		}
		if p, err = lastStarted(p); err != nil {
			return p, err
		}
	}
	if p.Token.IsZero() && p.DataDir != "" {
		token, err := ReadToken(p.DataDir)
		// A server without authentication has none; one whose directory is closed to us will say 401.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, os.ErrPermission) {
			return p, err
		}
		p.Token = token
	}
	// An address alone: its token may be that of the server started last, if that is the one meant.
	if p.Token.IsZero() && p.DataDir == "" {
		if c, err := ReadCurrent(); err == nil && plainAddress(c.Address) == plainAddress(p.Address) {
			if token, err := ReadToken(c.DataDir); err == nil {
				p.Token, p.DataDir = token, c.DataDir
			}
		}
	}
	return p, nil
}

// unitDir is the data directory of the server that the package's unit runs. Tests name another.
var unitDir = "/var/lib/muster"

// lastStarted is the server that this user has started last, or else the one of the package's unit:
// systemd gives that one no home directory in which it could say that it has started.
func lastStarted(p Place) (Place, error) {
	c, err := ReadCurrent()
	switch {
	case err == nil:
		p.Address, p.DataDir = c.Address, c.DataDir
		p.From, _ = currentPath()
		return p, nil
	case !errors.Is(err, fs.ErrNotExist):
		return p, err
	}
	address, from, err := addressIn(unitDir)
	if err != nil || address == "" {
		return p, ErrUnknown // it does not exist, or only its user may look there
	}
	p.Address, p.From, p.DataDir = address, from, unitDir
	return p, nil
}

// addressIn is where the server of a data directory listens, and the file that says so.
func addressIn(dataDir string) (address, from string, err error) {
	s, err := ReadServer(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", unknown(fmt.Sprintf("%s: no server has run there (it has no %s); start one with `muster dev --data-dir %s`, or with `muster server -c FILE` where FILE has this data_dir", dataDir, serverFile, dataDir))
	}
	return s.Address, filepath.Join(dataDir, serverFile), err
}

// plainAddress is an address without scheme and path.
func plainAddress(a string) string {
	return strings.TrimSuffix(strings.TrimPrefix(a, "http://"), "/")
}
