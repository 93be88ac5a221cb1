package locate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/musterhq/muster"
)

// contextsFile is in the user's configuration directory. It may hold tokens, so nobody else may read it.
const contextsFile = "contexts.json"

// LastStarted is the name that stands for the server of this host that the user started last. No
// context may have it.
const LastStarted = "local"

// Context is a server under a name that the user gave it.
type Context struct {
	Name string `json:"name"`
	// Address is where the server listens. Without one it is what DataDir says.
	Address string `json:"address,omitempty"`
	// DataDir is the data directory of a server of this host.
	DataDir string `json:"data_dir,omitempty"`
	// Token is empty where DataDir has it, and where none is needed.
	Token string `json:"token,omitempty"`
}

// Contexts are all of them.
type Contexts struct {
	// Current is the one that is used if nothing else is said; "" stands for LastStarted.
	Current  string    `json:"current,omitempty"`
	Contexts []Context `json:"contexts"`
}

// ReadContexts reads the contexts of this user. Without a file there are none.
func ReadContexts() (*Contexts, error) {
	path, err := contextsPath()
	if err != nil {
		return nil, err
	}
	c := &Contexts{}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others (mode %04o) and may hold tokens; chmod 600 it", path, info.Mode().Perm())
	}
	return c, readJSON(path, c)
}

// Write replaces the file.
func (c *Contexts) Write() error {
	path, err := contextsPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return writeJSON(path, c)
}

// Named is the context of a name; nil if there is none.
func (c *Contexts) Named(name string) *Context {
	i := slices.IndexFunc(c.Contexts, func(x Context) bool { return x.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Contexts[i]
}

// Names are the names of all contexts, that of the last started server included.
func (c *Contexts) Names() []string {
	names := []string{LastStarted}
	for i := range c.Contexts {
		names = append(names, c.Contexts[i].Name)
	}
	return names
}

func contextsPath() (string, error) {
	current, err := currentPath()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(current), contextsFile), nil
}

// inContext is where the server of a context is. name is "" for the current one. used is false if that
// is the server that was started last.
func inContext(name string, p Place) (place Place, used bool, err error) {
	all, err := ReadContexts()
	if err != nil {
		return p, false, err
	}
	if name == "" {
		name = all.Current
	}
	if name == "" || name == LastStarted {
		return p, false, nil
	}
	c := all.Named(name)
	if c == nil {
		return p, false, badContext(fmt.Sprintf("there is no context %q; there are %s (`muster context list`)", name, strings.Join(all.Names(), ", ")))
	}
	p.DataDir = c.DataDir
	if p.Token.IsZero() {
		p.Token = muster.NewSecret(c.Token)
	}
	if p.Address = c.Address; p.Address == "" {
		p.Address, p.From, err = addressIn(c.DataDir)
		return p, true, err
	}
	p.From = "context " + name
	return p, true, nil
}
