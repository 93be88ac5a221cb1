package reach

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/remote"
	"github.com/musterhq/muster/internal/state"
)

// replacement returns the host key that a node shows after the first connection. ok is false if it
// has none, or if it is not known here; then the key of the log stays.
func (r *Reach) replacement(n *state.Node) (private muster.Secret, line string, ok bool) {
	if r.cfg.Replacement == nil || r.cfg.Rekeyed == nil {
		return muster.Secret{}, "", false
	}
	private, line, ok, err := r.cfg.Replacement(n)
	if err != nil {
		r.log.Warn("no new host key for a node: it keeps that of its user data", "node", n.ID, "error", err)
	}
	return private, line, ok && err == nil
}

// hostKeyFile is where hosts have their ed25519 key.
const hostKeyFile = "/etc/ssh/ssh_host_ed25519_key"

// rekeyScript replaces the host key file $1 by what is on its stdin, and has sshd read it: the sshd
// that listens is the topmost of the script's ancestors of that name. It goes on with the connections
// that it has. One that listens for nobody, as sshd -i does, reads its key at each connection. The new
// files are complete before they get their names, so a script that is cut off leaves the old key or
// the new one.
const rekeyScript = `umask 077; k="$1"; cat >"$k.muster" && test -s "$k.muster" && ` +
	`ssh-keygen -y -f "$k.muster" >"$k.muster.pub" </dev/null && chmod 644 "$k.muster.pub" && ` +
	`mv "$k.muster" "$k" && mv "$k.muster.pub" "$k.pub" || exit 1; p=$$; top=; ` +
	`while test "$p" -gt 1; do test "$(cat /proc/$p/comm)" = sshd && top=$p; p=$(sed -n "s/^PPid:[^0-9]*//p" /proc/$p/status); done; ` +
	`test -n "$top" || { echo "no sshd among the parents of the shell" >&2; exit 1; }; ` +
	`case "$(tr -d "[:cntrl:]" </proc/$top/cmdline)" in *listener*) ;; sshd:*) exit 0;; esac; kill -HUP "$top"`

// rekey replaces the host key of the user data, which anything on the machine can read that reaches
// the cloud's metadata service. The log gets the new key after the host has it: the connection that is
// there was verified by the old key, and later ones accept both until the log has the new one.
func (r *Reach) rekey(ctx context.Context, c *remote.Conn, n *state.Node) error {
	private, line, ok := r.replacement(n)
	if !ok || line == n.HostKey {
		return nil
	}
	result, err := c.Run(ctx, remote.Command{
		Script: rekeyScript, Purpose: "replace its host key", Args: []string{cmp.Or(r.cfg.HostKeyFile, hostKeyFile)}, Stdin: strings.NewReader(private.Reveal()), Root: true, Limit: startTimeout,
	})
	if err != nil {
		return fmt.Errorf("replace its host key: %w", err)
	}
	if result.Exit != 0 {
		return muster.Faultf(muster.FaultUnavailable, "host %s: its host key was not replaced: %s", c.Address(), failure(result))
	}
	return r.cfg.Rekeyed(ctx, n.ID, line)
}
