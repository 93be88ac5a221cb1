package ec2test

import (
	"encoding/base64"
	"regexp"
	"strings"
	"time"
)

// shape is what an id looks like; the short ones are those of instances from before 2016. EC2 tells an
// id of another shape from one that it does not know.
var shape = regexp.MustCompile(`^i-([0-9a-f]{8}|[0-9a-f]{17})$`)

// malformed is refused before anything is looked up.
func malformed(id string) *failure {
	return fail(400, "InvalidInstanceID.Malformed", "Invalid id: \"%s\"", id)
}

// notFound names one id, although more may be missing, and says nothing of whether the instance runs:
// a replica that does not know it yet answers the same.
func notFound(id string) *failure {
	return fail(400, "InvalidInstanceID.NotFound", "The instance ID '%s' does not exist", id)
}

// find are the instances of ids, or the refusal of the first bad one: one wrong id spoils the whole
// call. mu is held.
func (s *Server) find(ids []string) ([]*instance, *failure) {
	// All of a call are asked of one replica, as one call is answered by one host.
	now, replica := s.now(), s.rand.IntN(2)
	for _, id := range ids {
		if !shape.MatchString(id) {
			return nil, malformed(id)
		}
	}
	var out []*instance
	for _, id := range ids {
		i := s.byID[id]
		if i != nil {
			i.advance(now)
		}
		if i == nil || !i.listed(replica, now) {
			return nil, notFound(id)
		}
		out = append(out, i)
	}
	return out, nil
}

// maxIDs is the most ids of a call.
const maxIDs = 1000

// change ends, stops or starts instances: all of them or none.
func (c *call) change() (string, *failure) {
	ids := c.values("InstanceId")
	if len(ids) == 0 {
		return "", fail(400, "MissingParameter", "The request must contain the parameter InstanceId")
	}
	if len(ids) > maxIDs {
		return "", fail(400, "InvalidParameterValue", "More than %d instances", maxIDs)
	}
	items, start, stop, refused := c.changeAll(ids)
	if m := c.s.cfg.Machines; m != nil {
		end := m.Stop
		if p, ok := m.(PowerOffer); ok && c.action == "StopInstances" {
			end = p.PowerOff
		}
		for _, id := range stop {
			end(id)
		}
	}
	c.s.startMachines(start)
	return items, refused
}

// changeAll checks all instances before it changes one. It returns those whose machines are to be
// started and stopped, which takes too long for the lock.
func (c *call) changeAll(ids []string) (items string, start []*instance, stop []string, refused *failure) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	found, refused := s.find(ids)
	if refused != nil {
		return "", nil, nil, refused
	}
	for _, i := range found {
		wrong := i.over() && c.action != "TerminateInstances" || c.action == "StartInstances" && i.state != stopped && i.state != running && i.state != pending ||
			c.action == "StopInstances" && i.state == pending
		if wrong {
			return "", nil, nil, fail(400, "IncorrectInstanceState", "The instance '%s' is not in a state from which it can be changed.", i.id)
		}
		// Only a persistent request lets its instance be stopped.
		if c.action == "StopInstances" && i.spot {
			return "", nil, nil, fail(400, "UnsupportedOperation", "You can't stop the Spot Instance '%s' because it is associated with a one-time Spot Instance request.", i.id)
		}
		// A stopped instance has no claim to the host that it ran on: capacity can be out at its start.
		if c.action == "StartInstances" && i.state == stopped {
			about := subject{action: c.action, kind: i.kind.Name, zone: i.zone, family: i.kind.Family, market: "on-demand", n: i.n}
			if s.striking("create", "capacity", about) != nil {
				return "", nil, nil, fail(500, "InsufficientInstanceCapacity", "Insufficient capacity to start '%s'.", i.id)
			}
		}
	}
	// After all checks and before any change, as EC2 has it: a dry run says whether it would be allowed.
	if c.form.Get("DryRun") == "true" {
		return "", nil, nil, dryRun
	}
	now := s.now()
	for _, i := range found {
		before := i.state
		switch {
		// Machines are stopped by the caller, once the lock is free: their end can take a while.
		case c.action == "TerminateInstances" && !i.over():
			i.end(now, "Client.UserInitiatedShutdown: User initiated shutdown")
			stop = append(stop, i.id)
		case c.action == "StopInstances" && i.state == running:
			i.turn(now, stopping)
			stop = append(stop, i.id)
		case c.action == "StartInstances" && i.state == stopped:
			i.state, i.until = pending, now.Add(i.turns)
			start = append(start, i)
		}
		items += nest("item", el("instanceId", i.id), stateXML("currentState", i.state), stateXML("previousState", before))
	}
	return nest("instancesSet", items), start, stop, nil
}

// createTags replaces tags of the same key. It checks no owner, as EC2 does not: that is the driver's,
// or a policy's.
func (c *call) createTags() (string, *failure) {
	tags, refused := c.readTags("Tag")
	ids := c.values("ResourceId")
	switch {
	case refused != nil:
		return "", refused
	// EC2 takes no call that would change nothing.
	case len(tags) == 0 || len(ids) == 0:
		return "", fail(400, "MissingParameter", "The request must contain resources and tags")
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	now := s.now()
	var into []*[]tag
	for _, id := range ids {
		switch i := s.byID[id]; {
		case strings.HasPrefix(id, "vol-"):
			for _, v := range s.volumes {
				if v.id == id && v.deleted.IsZero() {
					into = append(into, &v.tags)
				}
			}
		case !shape.MatchString(id):
			return "", fail(400, "InvalidID", "The ID '%s' is not valid", id)
		// A tag call needs an instance that all replicas know.
		case i == nil || !i.listed(0, now) || !i.listed(1, now):
			return "", notFound(id)
		default:
			into = append(into, &i.tags)
		}
	}
	if c.form.Get("DryRun") == "true" {
		return "", dryRun
	}
	for _, t := range into {
		setTags(t, tags)
	}
	return el("return", "true"), nil
}

// deleteVolume refuses a volume in use.
func (c *call) deleteVolume() (string, *failure) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle()
	for _, v := range s.volumes {
		if v.id != c.form.Get("VolumeId") || !v.deleted.IsZero() {
			continue
		}
		// A driver that sweeps by the age of volumes and not by their state finds this.
		if i := s.byID[v.instance]; i != nil && i.state != terminated {
			return "", fail(400, "VolumeInUse", "Volume %s is currently attached to %s", v.id, i.id)
		}
		if c.form.Get("DryRun") == "true" {
			return "", dryRun
		}
		v.deleted = s.now()
		return el("return", "true"), nil
	}
	return "", fail(400, "InvalidVolume.NotFound", "The volume '%s' does not exist.", c.form.Get("VolumeId"))
}

// consoleAfter is how long an instance's console is empty.
const consoleAfter = 30 * time.Second

// consoleOutput is empty at first, and EC2 sends a success for that.
func (c *call) consoleOutput() (string, *failure) {
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	found, refused := s.find([]string{c.form.Get("InstanceId")})
	if refused != nil {
		return "", refused
	}
	text := ""
	if s.now().Sub(found[0].created) >= consoleAfter {
		text = base64.StdEncoding.EncodeToString([]byte("[    0.000000] Linux version 6.1.0\n"))
	}
	return el("instanceId", found[0].id) + el("timestamp", stamp(s.now())) + "<output>" + text + "</output>", nil
}
