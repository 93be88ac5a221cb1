package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/internal/locate"
	"github.com/musterhq/muster/internal/version"
)

// FollowPatience is how long a command that follows something waits for a server that has gone
// away. A restart and an upgrade are shorter; whoever waits longer wants to know.
const FollowPatience = 10 * time.Minute

// JobAt reads a job's name as JobKey does, and makes a client to ask the server about it.
func (a *App) JobAt(name string) (muster.JobKey, *client.Client, error) {
	key, err := a.JobKey(name)
	if err != nil {
		return key, nil, err
	}
	cl, err := a.Connect()
	return key, cl, err
}

// Job asks the server for the job of a name, which it reads as JobKey does.
func (a *App) Job(ctx context.Context, name string) (muster.JobKey, *client.Client, *api.Job, error) {
	key, cl, err := a.JobAt(name)
	if err != nil {
		return key, nil, nil, err
	}
	job, err := cl.Job(ctx, key)
	return key, cl, job, JobHint(err)
}

// JobKey reads a job's name as users write it: NAME or NAMESPACE/NAME. Without a namespace in the
// name, --namespace counts, and then the default one. Two that differ are refused: one of them is a
// mistake, and nobody knows which.
func (a *App) JobKey(name string) (muster.JobKey, error) {
	key := muster.JobKey{Namespace: muster.Namespace(a.Namespace), Name: name}
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		if a.Namespace != "" && a.Namespace != ns {
			return key, Usage(fmt.Errorf("%q is in another namespace than --namespace %s", name, a.Namespace))
		}
		key = muster.JobKey{Namespace: muster.Namespace(ns), Name: rest}
	}
	key.Namespace = cmp.Or(key.Namespace, muster.DefaultNamespace)
	if err := muster.CheckName(string(key.Namespace)); err != nil {
		return key, Usage(fmt.Errorf("namespace %q %w", key.Namespace, err))
	}
	if err := muster.CheckName(key.Name); err != nil {
		return key, Usage(fmt.Errorf("job name %q %w", key.Name, err))
	}
	return key, nil
}

// Connect makes a client of the server that is meant: by flags, by the environment, or the last one
// that was started on this host. It does not ask the server anything yet. A server that was started
// again may listen on another port, so the client looks up the address again when the server does
// not answer.
func (a *App) Connect() (*client.Client, error) {
	given := a.Given.Environment(os.Getenv)
	place, err := locate.Find(given)
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{
		Address: place.Address, Token: place.Token, UserAgent: "muster/" + version.String(),
		// A server that was started again may have come back on another port.
		Find: func() (string, muster.Secret, error) {
			p, err := locate.Find(given)
			return p.Address, p.Token, err
		},
	})
}
