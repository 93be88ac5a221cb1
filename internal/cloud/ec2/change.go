package ec2

import (
	"context"
	"errors"
	"net/url"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// maxChanged is how many instances one call ends, stops or starts. EC2 takes 1,000.
	maxChanged = 500
	// maxDropped is how often a call is repeated without the instances that EC2 names as missing, one
	// each time; after that each instance gets a call of its own.
	maxDropped = 10

	actionTerminate = "TerminateInstances"
	actionStop      = "StopInstances"
	actionStart     = "StartInstances"
)

// Destroy is cloud.Provider's.
func (p *Provider) Destroy(ctx context.Context, ids []muster.InstanceID) []error {
	return p.change(ctx, actionTerminate, ids)
}

// Stop is cloud.Stopper's.
func (p *Provider) Stop(ctx context.Context, ids []muster.InstanceID) []error {
	return p.change(ctx, actionStop, ids)
}

// Start is cloud.Stopper's.
func (p *Provider) Start(ctx context.Context, ids []muster.InstanceID) []error {
	return p.change(ctx, actionStart, ids)
}

// changeAnswer is that of the actions that change the state of instances.
type changeAnswer struct {
	Instances []struct {
		ID    string `xml:"instanceId"`
		State string `xml:"currentState>name"`
	} `xml:"instancesSet>item"`
}

// change ends, stops or starts instances. The errors are in the order of the ids.
func (p *Provider) change(ctx context.Context, action string, ids []muster.InstanceID) []error {
	results := make(map[muster.InstanceID]error, len(ids))
	ask := p.changeable(ctx, action, ids, results)
	for len(ask) > 0 {
		n := min(len(ask), maxChanged)
		p.changeTogether(ctx, action, ask[:n], results)
		ask = ask[n:]
	}
	errs := make([]error, len(ids))
	for i, id := range ids {
		errs[i] = results[id]
	}
	return errs
}

// absent is the result for an instance that is not there: what was to be ended has ended.
func (p *Provider) absent(action string, id muster.InstanceID) error {
	if action == actionTerminate {
		return nil
	}
	return muster.Faultf(muster.FaultNotFound, "instance %q is not there", id)
}

// changeable are the instances that are the owner's, once each. The others have their results. EC2
// itself checks no owner.
func (p *Provider) changeable(ctx context.Context, action string, ids []muster.InstanceID, results map[muster.InstanceID]error) []muster.InstanceID {
	var ask, unknown []muster.InstanceID
	for _, id := range ids {
		if _, had := results[id]; had {
			continue
		}
		results[id] = nil
		known, ok := p.instances.get(id)
		switch {
		case !idShape.MatchString(string(id)), ok && known.state == stateTerminated:
			results[id] = p.absent(action, id)
		case ok && known.state == stateShuttingDown && action != actionTerminate:
			results[id] = p.absent(action, id)
		case ok:
			ask = append(ask, id)
		default:
			unknown = append(unknown, id)
		}
	}
	if len(unknown) == 0 {
		return ask
	}
	found, err := p.describe(ctx, unknown)
	for _, id := range unknown {
		w := found[id]
		switch {
		case err != nil:
			results[id] = err
		case w == nil && p.cfg.Now().Sub(p.began) < listLag:
			// A server that has ended a moment ago may have made it.
			results[id] = muster.Faultf(muster.FaultTransient, "EC2 does not know instance %s, or not yet", id)
		case w == nil || w.State == stateTerminated:
			results[id] = p.absent(action, id)
		default:
			tags := w.tags()
			if tags.Owner != p.cfg.Owner {
				results[id] = muster.Faultf(muster.FaultNotFound, "instance %s is not of owner %s", id, p.cfg.Owner)
				continue
			}
			p.instances.learn(w, tags, p.cfg.Now(), false)
			ask = append(ask, id)
		}
	}
	return ask
}

// changeTogether makes one call for all. EC2 changes all of them or none: if it does not know one,
// the call is made again without that one.
func (p *Provider) changeTogether(ctx context.Context, action string, ids []muster.InstanceID, results map[muster.InstanceID]error) {
	for range maxDropped {
		err := p.changeOnce(ctx, action, ids, results)
		code := codeOf(err)
		if code != codeNotFound && code != codeMalformed || len(ids) == 1 {
			if err != nil && len(ids) > 1 && oneByOneMayHelp(code) {
				break
			}
			p.changed(action, ids, err, results)
			return
		}
		var why *refusal
		errors.As(err, &why)
		var missing, rest []muster.InstanceID
		for _, id := range ids {
			if namedIn(why.message, id) {
				missing = append(missing, id)
			} else {
				rest = append(rest, id)
			}
		}
		if len(missing) == 0 {
			break
		}
		p.changed(action, missing, err, results)
		if ids = rest; len(ids) == 0 {
			return
		}
	}
	for _, id := range ids {
		one := []muster.InstanceID{id}
		p.changed(action, one, p.changeOnce(ctx, action, one, results), results)
	}
}

// oneByOneMayHelp reports whether EC2 refused a call for one of its instances: a protected one, or
// one whose state does not allow it.
func oneByOneMayHelp(code string) bool {
	switch code {
	case codeNotPermitted, "UnsupportedOperation", "IncorrectInstanceState", "UnauthorizedOperation", "IncorrectSpotRequestState":
		return true
	}
	return false
}

func namedIn(text string, id muster.InstanceID) bool {
	for _, named := range idInText.FindAllString(text, -1) {
		if named == string(id) {
			return true
		}
	}
	return false
}

// changeOnce is one call. Where it succeeds, each instance has its result.
func (p *Provider) changeOnce(ctx context.Context, action string, ids []muster.InstanceID, results map[muster.InstanceID]error) error {
	form := url.Values{}
	list(form, "InstanceId", ids)
	var a changeAnswer
	q := call{action: action, form: form, effect: driver.Makes}
	if action == actionStart && len(ids) == 1 {
		if i, ok := p.instances.get(ids[0]); ok {
			q.about = about{offering: i.Offering, zone: i.Zone, market: i.Market}
		}
	}
	if err := p.api.do(ctx, q, &a); err != nil {
		return err
	}
	for _, id := range ids {
		results[id] = muster.Faultf(muster.FaultAmbiguous, "%s: instance %s is not in the answer", p.api.named(action), id)
	}
	for _, i := range a.Instances {
		id := muster.InstanceID(i.ID)
		if _, asked := results[id]; !asked {
			continue
		}
		results[id] = nil
		p.instances.changed(id, i.State)
	}
	return nil
}

// changed is the result of a call for instances; a success has given each its own.
func (p *Provider) changed(action string, ids []muster.InstanceID, err error, results map[muster.InstanceID]error) {
	if err == nil {
		return
	}
	now := p.cfg.Now()
	for _, id := range ids {
		switch code := codeOf(err); {
		case code != codeNotFound && code != codeMalformed:
			results[id] = err
		case p.instances.young(id, now):
			// EC2 may not know it yet, and would let it run on.
			results[id] = &muster.Fault{Kind: muster.FaultTransient, Message: "instance " + string(id) + " is too young: EC2 does not know it yet", Err: err}
		default:
			p.instances.forget(id)
			results[id] = p.absent(action, id)
		}
	}
}

// changed notes the state that EC2 says an instance has now.
func (s *instances) changed(id muster.InstanceID, state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[id]; i != nil {
		i.state = state
		if i.Failed != nil && ended(state) {
			delete(s.m, id)
		}
	}
}
