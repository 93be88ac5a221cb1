package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// IntoNamespace puts what a file describes into the namespace of --namespace. A file that names
// another one is refused. One in the namespace "default" is not: a file that names none reads like
// that. The noun names what the file describes.
func (a *App) IntoNamespace(namespace *string, noun string) error {
	switch {
	case a.Namespace == "" || *namespace == a.Namespace:
	case *namespace == "" || *namespace == "default":
		*namespace = a.Namespace
	default:
		return Usage(fmt.Errorf("the %s is of namespace %s, not of --namespace %s", noun, *namespace, a.Namespace))
	}
	return nil
}

// FolderOf is the folder that paths in a job file are relative to. "-" stands for stdin, which lies
// where the command was typed.
func FolderOf(file string) string {
	if file == "-" {
		return "."
	}
	return filepath.Dir(file)
}

// ParseEnv reads environment variables as users write them: NAME=VALUE, or NAME to pass on their
// own. A variable that is not set here is refused, because to pass on nothing is what nobody means.
func ParseEnv(list []string) (map[string]string, error) {
	env := map[string]string{}
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			if value, ok = os.LookupEnv(name); !ok {
				return nil, fmt.Errorf("--env %s: it is not set here; give it a value, as %s=VALUE", name, name)
			}
		}
		if name == "" {
			return nil, fmt.Errorf("--env %s: there is no name before =", e)
		}
		env[name] = value
	}
	return env, nil
}
