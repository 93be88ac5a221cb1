package openstack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/keypairs"
	"github.com/gophercloud/gophercloud/v2/openstack/compute/v2/servers"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/driver"
	"github.com/musterhq/muster/internal/wait"
)

const (
	// verdict is how long Create waits for servers to be built.
	verdict = time.Minute
	// lockLife is how old a lock may be: a create takes two minutes at most, so one that is older was
	// left by a server of Muster that died.
	lockLife = 5 * time.Minute
	// ownLockLife is how old a lock of this server's own may be that no create of this process holds.
	// Whoever took it is dead, but Nova may be busy with its last call: for a minute, as long as its API
	// waits for an answer from within.
	ownLockLife = time.Minute
	// maxMetadata is how long a value of a server's metadata may be.
	maxMetadata = 255
	tagZone     = "muster-zone"
)

// Create is cloud.Provider's. It waits up to a minute for the servers to be placed: Nova accepts
// first, and most refusals show only then.
func (p *Provider) Create(ctx context.Context, intents []cloud.Intent) []cloud.Created {
	out := make([]cloud.Created, len(intents))
	driver.Each(len(intents), driver.AtOnce, func(i int) {
		made, err := p.create(ctx, &intents[i])
		out[i] = cloud.Created{Instance: made, Err: err}
	})
	p.await(ctx, out)
	for i := range out {
		if out[i].Err == nil {
			if s, ok := p.known(out[i].Instance.ID); ok {
				out[i].Instance.Failed = s.instance.Failed
			}
		}
	}
	return out
}

// create makes the server of one intent, or finds it.
func (p *Provider) create(ctx context.Context, in *cloud.Intent) (cloud.Instance, error) {
	what := "create server for token " + string(in.Token)
	leave := p.creating.Take(ctx, in.Token)
	if leave == nil {
		return cloud.Instance{}, &muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: ctx.Err()}
	}
	defer leave()
	s, err := p.session(ctx, what)
	if err != nil {
		return cloud.Instance{}, err
	}
	opts, err := p.options(ctx, in)
	if err != nil {
		if ctx.Err() != nil {
			return cloud.Instance{}, &muster.Fault{Kind: muster.FaultTransient, Message: what + ": not sent", Err: err}
		}
		return cloud.Instance{}, err
	}
	unlock, err := p.lock(ctx, s, opts.Name)
	if err != nil {
		return cloud.Instance{}, err
	}
	// The lock is released also when the call's time is over.
	defer unlock(context.WithoutCancel(ctx))
	if have, err := p.find(ctx, s, in, opts.Name); err != nil || have.ID != "" {
		return have, err
	}
	traced, sent := driver.Trace(ctx)
	c := call{what: what, effect: driver.Makes, offering: in.Offering, zone: in.Zone, sent: sent}
	made, err := servers.Create(traced, s.compute, opts, nil).Extract()
	switch {
	case err != nil:
		return cloud.Instance{}, p.fault(c, err)
	case !isID(made.ID):
		return cloud.Instance{}, muster.Faultf(muster.FaultAmbiguous, "%s: the answer has no server", what)
	}
	// The answer to a create has nothing but the id.
	now, err := p.read(ctx, muster.InstanceID(made.ID))
	if err != nil {
		return cloud.Instance{}, &muster.Fault{Kind: muster.FaultAmbiguous, Message: what + ": it was made as " + made.ID, Err: err}
	}
	return p.learn(now), nil
}

// options are the body of a create. They follow from the intent and the configuration alone.
func (p *Provider) options(ctx context.Context, in *cloud.Intent) (servers.CreateOpts, error) {
	none := servers.CreateOpts{}
	if n := len(in.Boot.UserData.Reveal()); n > maxUserData {
		return none, &muster.Fault{Kind: muster.FaultInvalid, Field: "user_data_file", Message: "user data is longer than Nova takes, 49,149 bytes"}
	}
	flavor, err := p.offered(ctx, in.Offering, in.Zone)
	if err != nil {
		return none, err
	}
	network, err := p.network.Get(ctx)
	if err != nil {
		return none, err
	}
	image, err := p.image.Get(ctx)
	if err != nil {
		return none, err
	}
	metadata, err := p.metadata(cloud.Tags{Owner: p.cfg.Owner, Token: in.Token, Node: in.Node, Pool: in.Pool}, in.Labels)
	if err != nil {
		return none, err
	}
	metadata[tagZone] = in.Zone // Nova says the zone only once a host is found
	opts := servers.CreateOpts{
		Name: driver.InstanceName(p.cfg.Owner, in.Token), FlavorRef: flavor.ID, ImageRef: image, AvailabilityZone: in.Zone,
		Networks: []servers.Network{{UUID: network}}, SecurityGroups: p.cfg.SecurityGroups, Metadata: metadata,
		Tags:     []string{p.ownerTag()},
		UserData: []byte(base64.StdEncoding.EncodeToString([]byte(in.Boot.UserData.Reveal()))),
	}
	if flavor.Disk == 0 {
		// A flavor without a disk starts only from a volume. Nova makes it, and deletes it with the server.
		opts.ImageRef = ""
		opts.BlockDevice = []servers.BlockDevice{{SourceType: servers.SourceImage, DestinationType: servers.DestinationVolume, UUID: image,
			VolumeSize: int((p.cfg.Disk + muster.GiB - 1) / muster.GiB), DeleteOnTermination: true}}
	}
	return opts, nil
}

// metadata are the tags and, where they fit, the operator's own.
func (p *Provider) metadata(tags cloud.Tags, more map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range more {
		if !strings.HasPrefix(k, "muster-") && k != "" && len(k) <= maxMetadata && len(v) <= maxMetadata {
			out[k] = v
		}
	}
	maps.Copy(out, driver.TagMap(tags))
	for k, v := range driver.TagMap(tags) {
		if len(v) > maxMetadata {
			return nil, muster.Faultf(muster.FaultInvalid, "metadata %s has %d characters, and Nova takes %d", k, len(v), maxMetadata)
		}
	}
	return out, nil
}

// find looks for the server of a token. One that is being deleted is no success: the token is used
// up.
func (p *Provider) find(ctx context.Context, s *session, in *cloud.Intent, name string) (cloud.Instance, error) {
	what := "look for the server of token " + string(in.Token)
	page, err := p.page(ctx, s, what, servers.ListOpts{Name: "^" + name + "$", Limit: maxPage})
	if err != nil {
		return cloud.Instance{}, err
	}
	var have []cloud.Instance
	for i := range page.servers {
		v := &page.servers[i]
		if tags := driver.TagsOf(v.Metadata); tags.Owner != p.cfg.Owner || tags.Token != in.Token || ended(v) {
			continue
		}
		if v.TaskState == taskDeleting {
			return cloud.Instance{}, muster.Faultf(muster.FaultTransient, "%s: server %s is being deleted, so the token is used up", what, v.ID)
		}
		have = append(have, p.learn(v))
	}
	if len(have) == 0 {
		return cloud.Instance{}, nil
	}
	// Of two, which need a lock that was lost, every caller gets the same.
	return slices.MinFunc(have, func(a, b cloud.Instance) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(string(a.ID), string(b.ID)))
	}), nil
}

// lock keeps other servers of Muster from making the server of this name at the same time. The lock
// is a key pair, the one thing whose name is unique. What it returns releases it. A create of this
// process never meets its own lock, since p.creating lets one at a time through.
func (p *Provider) lock(ctx context.Context, s *session, name string) (unlock func(context.Context), err error) {
	what := "lock of server " + name
	key := lockKey(p)
	for range 2 {
		traced, sent := driver.Trace(ctx)
		_, err := keypairs.Create(traced, s.compute, keypairs.CreateOpts{Name: name, PublicKey: key}).Extract()
		if err == nil {
			return func(ctx context.Context) { p.unlock(ctx, s, name) }, nil
		}
		// Whatever came of the call, no server was made.
		f := p.fault(call{what: what, sent: sent}, err)
		if status(err) != http.StatusConflict {
			if f.Kind == muster.FaultNotFound {
				f.Kind = muster.FaultTransient
			}
			return nil, f
		}
		left, own, err := p.lockLeft(ctx, s, name)
		switch {
		case err != nil:
			return nil, &muster.Fault{Kind: muster.FaultTransient, Message: what, Err: err}
		case left > 0 && own:
			return nil, muster.Faultf(muster.FaultAmbiguous, "%s: this server was ended while it made it, and tries again in %s", what, left.Round(time.Second))
		case left > 0:
			return nil, muster.Faultf(muster.FaultAmbiguous, "%s: another server of Muster makes it now", what)
		}
		p.unlock(ctx, s, name)
	}
	return nil, muster.Faultf(muster.FaultAmbiguous, "%s: another server of Muster makes it now", what)
}

// Key pairs that are locks. Half of the bits of such a key follow from the owner, and half from the id
// of the server of Muster. So nobody has the private half, and no server is made with it.
const lockKind, lockHalf = "ssh-ed25519", 16

// lockName is what locks are called.
var lockName = regexp.MustCompile(`^m-[0-9a-f]{24}$`)

// lockBlob is the key of this server's locks: RFC 8709 has its kind and its bits, each after its length.
func lockBlob(p *Provider) []byte {
	var bits []byte
	for _, of := range []string{"owner " + p.cfg.Owner, "server " + p.cfg.Server} {
		sum := sha256.Sum256([]byte("lock of " + of))
		bits = append(bits, sum[:lockHalf]...)
	}
	var blob []byte
	for _, field := range [][]byte{[]byte(lockKind), bits} {
		blob = binary.BigEndian.AppendUint32(blob, uint32(len(field)))
		blob = append(blob, field...)
	}
	return blob
}

func lockKey(p *Provider) string {
	return lockKind + " " + base64.StdEncoding.EncodeToString(lockBlob(p)) + " muster-lock"
}

// lockOf reports whether a key pair is a lock of this owner, and whether it is of this server.
func (p *Provider) lockOf(name, key string) (owner, server bool) {
	// Nova may change the comment after the key.
	words := strings.Fields(key)
	if !lockName.MatchString(name) || len(words) < 2 {
		return false, false
	}
	have, err := base64.StdEncoding.DecodeString(words[1])
	want := lockBlob(p)
	if err != nil || len(have) != len(want) {
		return false, false
	}
	owner = bytes.Equal(have[:len(have)-lockHalf], want[:len(want)-lockHalf])
	return owner, p.cfg.Server != "" && bytes.Equal(have, want)
}

// pair is a key pair. Lists do not say when it was made.
type pair struct {
	Created string `json:"created_at"`
	Key     string `json:"public_key"`
}

func (p *Provider) readPair(ctx context.Context, s *session, name string) (pair, error) {
	var out pair
	err := keypairs.Get(ctx, s.compute, name, nil).ExtractIntoStructPtr(&out, "keypair")
	return out, err
}

// lockLeft is how long a lock still holds, and whether it is this server's own. One that is gone holds
// no more.
func (p *Provider) lockLeft(ctx context.Context, s *session, name string) (left time.Duration, own bool, err error) {
	pair, err := p.readPair(ctx, s, name)
	switch {
	case status(err) == http.StatusNotFound:
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	life := lockLife
	if _, own = p.lockOf(name, pair.Key); own {
		life = ownLockLife
	}
	at, ok := timeOf(pair.Created)
	if !ok {
		return life, own, nil
	}
	return life - p.cfg.Now().Sub(at), own, nil
}

func (p *Provider) unlock(ctx context.Context, s *session, name string) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := keypairs.Delete(ctx, s.compute, name, nil).ExtractErr(); err != nil && status(err) != http.StatusNotFound {
		// It is old enough to be taken over in some minutes, and nothing else needs it.
		p.log.Warn("a lock cannot be released", "provider", p.cfg.Name, "keypair", name, "err", err)
	}
}

// await looks at the servers that are being built until they are, or the time for a verdict or the
// call's is over.
func (p *Provider) await(ctx context.Context, made []cloud.Created) {
	ctx, cancel := context.WithTimeout(ctx, verdict)
	defer cancel()
	for {
		building := func(c cloud.Created) bool {
			if c.Err != nil {
				return false
			}
			s, ok := p.known(c.Instance.ID)
			return ok && s.status == statusBuild
		}
		if !slices.ContainsFunc(made, building) || !wait.For(ctx, p.cfg.Poll) {
			return
		}
		s, err := p.session(ctx, "look at new servers")
		if err != nil {
			return
		}
		// The newest come first, so one page has all of this call.
		page, err := p.page(ctx, s, "look at new servers", servers.ListOpts{Name: "^m-", Limit: maxPage})
		if err != nil {
			// What has been made is known; how it ends will show in lists.
			p.log.Debug("new servers cannot be read", "provider", p.cfg.Name, "err", err)
			return
		}
		seen := map[muster.InstanceID]bool{}
		for i := range page.servers {
			if p.mine(&page.servers[i]) {
				p.learn(&page.servers[i])
				seen[muster.InstanceID(page.servers[i].ID)] = true
			}
		}
		if !slices.ContainsFunc(made, func(c cloud.Created) bool { return building(c) && seen[c.Instance.ID] }) {
			return
		}
	}
}
