package ec2test

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxUserData is the most bytes of user data before base64.
const maxUserData = 16 << 10

// usedToken is what a client token stands for, in one zone.
type usedToken struct {
	query string
	made  []*instance
	// done is closed when the answer of the launch has been given.
	done chan struct{}
}

// launch is what RunInstances asks for, checked.
type launch struct {
	// All of it was checked against the configuration, so what is made of it needs no errors.
	kind        Type
	subnet      Subnet
	image       Image
	least, most int
	spot        bool
	userData    []byte
	tags        map[string]map[string]string
	public      bool
	size        int
	keepVolume  bool
}

// wanted is what the script may select a launch by. mu is held.
func (s *Server) wanted(form map[string][]string) subject {
	get := func(k string) string { return strings.Join(form[k], "") }
	// The subnet stands for its zone: EC2 is not told the zone of a launch otherwise, and scripts name zones.
	about := subject{action: "RunInstances", kind: get("InstanceType"), market: cmp.Or(get("InstanceMarketOptions.MarketType"), "on-demand"),
		id: cmp.Or(get("NetworkInterface.1.SubnetId"), get("SubnetId")), zone: get("Placement.AvailabilityZone"), n: len(s.instances) + 1}
	for _, in := range s.cfg.Subnets {
		if in.ID == about.id {
			about.zone = in.Zone
		}
	}
	for _, t := range s.cfg.Types {
		if t.Name == about.kind {
			about.family = t.Family
		}
	}
	return about
}

// readLaunch checks what RunInstances asks for.
func (c *call) readLaunch() (*launch, *failure) {
	var l launch
	s := c.s
	get := c.form.Get
	// EC2 checks one thing after another and names the first that is wrong. The order here is close to its
	// own, since operators see these sentences.
	for _, name := range []string{"ImageId", "InstanceType", "MinCount", "MaxCount"} {
		if get(name) == "" {
			return nil, fail(400, "MissingParameter", "The request must contain the parameter %s", name)
		}
	}
	at := slices.IndexFunc(s.cfg.Types, func(t Type) bool { return t.Name == get("InstanceType") })
	if at < 0 {
		return nil, fail(400, "InvalidParameterValue", "Invalid value '%s' for InstanceType.", get("InstanceType"))
	}
	l.kind = s.cfg.Types[at]
	if at = slices.IndexFunc(s.cfg.Images, func(i Image) bool { return i.ID == get("ImageId") }); at < 0 {
		return nil, fail(400, "InvalidAMIID.NotFound", "The image id '[%s]' does not exist", get("ImageId"))
	}
	l.image = s.cfg.Images[at]
	// The fault of a pool with types of two architectures and one image.
	if l.image.Arch != l.kind.Arch {
		return nil, fail(400, "InvalidParameterValue", "The architecture '%s' of the specified instance type does not match the architecture '%s' of the specified AMI.", l.kind.Arch, l.image.Arch)
	}
	var err1, err2 error
	l.least, err1 = strconv.Atoi(get("MinCount"))
	l.most, err2 = strconv.Atoi(get("MaxCount"))
	if err1 != nil || err2 != nil || l.least < 1 || l.most < l.least {
		return nil, fail(400, "InvalidParameterValue", "MinCount (%s) and MaxCount (%s) do not fit", get("MinCount"), get("MaxCount"))
	}
	if len(get("ClientToken")) > 64 {
		return nil, fail(400, "InvalidParameterValue", "ClientToken has more than 64 characters")
	}
	var err error
	if l.userData, err = base64.StdEncoding.DecodeString(get("UserData")); err != nil {
		return nil, fail(400, "InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	}
	if len(l.userData) > maxUserData {
		return nil, fail(400, "InvalidUserData.Malformed", "User data is limited to 16384 bytes")
	}
	for _, f := range []func(*launch) *failure{c.readPlace, c.readTagSpecs, c.readOptions} {
		if refused := f(&l); refused != nil {
			return nil, refused
		}
	}
	return &l, nil
}

// readPlace checks the network of a launch.
func (c *call) readPlace(l *launch) *failure {
	get, s := c.form.Get, c.s
	// A public address can be asked for within an interface only, and then the subnet belongs there too.
	inside := c.form.Has("NetworkInterface.1.DeviceIndex") || c.form.Has("NetworkInterface.1.SubnetId")
	if inside && (get("SubnetId") != "" || c.form.Has("SecurityGroupId.1")) {
		return fail(400, "InvalidParameterCombination", "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same request")
	}
	id, groups := get("SubnetId"), c.values("SecurityGroupId")
	if inside {
		if get("NetworkInterface.1.DeviceIndex") != "0" {
			return fail(400, "MissingParameter", "Each network interface requires a device index.")
		}
		id, groups = get("NetworkInterface.1.SubnetId"), c.values("NetworkInterface.1.SecurityGroupId")
		l.public = get("NetworkInterface.1.AssociatePublicIpAddress") == "true"
	}
	// There is no default network here: a driver names where it launches.
	if id == "" {
		return fail(400, "MissingInput", "No subnets found for the default VPC")
	}
	at := slices.IndexFunc(s.cfg.Subnets, func(in Subnet) bool { return in.ID == id })
	if at < 0 {
		return fail(400, "InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", id)
	}
	l.subnet = s.cfg.Subnets[at]
	if z := get("Placement.AvailabilityZone"); z != "" && z != l.subnet.Zone {
		return fail(400, "InvalidParameterValue", "The availability zone %s is not that of subnet %s", z, id)
	}
	for _, g := range groups {
		if !slices.Contains(s.cfg.Groups, g) {
			return fail(400, "InvalidGroup.NotFound", "The security group '%s' does not exist", g)
		}
	}
	if zones := l.kind.Zones; zones != nil && !slices.Contains(zones, l.subnet.Zone) {
		return fail(400, "Unsupported", "Your requested instance type (%s) is not supported in your requested Availability Zone (%s).", l.kind.Name, l.subnet.Zone)
	}
	return nil
}

// readTagSpecs checks the tags of a launch.
func (c *call) readTagSpecs(l *launch) *failure {
	l.tags = map[string]map[string]string{}
	for n := 1; c.form.Has(fmt.Sprintf("TagSpecification.%d.ResourceType", n)); n++ {
		at := fmt.Sprintf("TagSpecification.%d", n)
		kind := c.form.Get(at + ".ResourceType")
		if !slices.Contains([]string{"instance", "volume", "network-interface", "spot-instances-request"}, kind) {
			return fail(400, "InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", kind)
		}
		// Tags of a request that is not made would be lost without a word at another cloud; EC2 refuses them.
		if kind == "spot-instances-request" && c.form.Get("InstanceMarketOptions.MarketType") != "spot" {
			return fail(400, "InvalidParameterValue", "The spot-instances-request resource type is for spot launches only")
		}
		if l.tags[kind] != nil {
			return fail(400, "InvalidParameter", "TagSpecification has %s twice", kind)
		}
		tags, refused := c.readTags(at + ".Tag")
		if refused != nil {
			return refused
		}
		l.tags[kind] = tags
	}
	return nil
}

// readTags checks a list of tags.
func (c *call) readTags(at string) (map[string]string, *failure) {
	out := map[string]string{}
	for n := 1; c.form.Has(at + "." + itoa(n) + ".Key"); n++ {
		k, v := c.form.Get(at+"."+itoa(n)+".Key"), c.form.Get(at+"."+itoa(n)+".Value")
		switch _, twice := out[k]; {
		case twice:
			return nil, fail(400, "InvalidParameterValue", "Duplicate tag key '%s' specified.", k)
		case k == "" || len([]rune(k)) > 128 || len([]rune(v)) > 256:
			return nil, fail(400, "InvalidParameterValue", "Tag key or value of %q is too long, or the key is empty", k)
		// Reserved in any case of letters.
		case strings.HasPrefix(strings.ToLower(k), "aws:"):
			return nil, fail(400, "InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
		}
		out[k] = v
	}
	if len(out) > 50 {
		return nil, fail(400, "TagLimitExceeded", "More than 50 tags")
	}
	return out, nil
}

// readOptions checks the rest of a launch.
func (c *call) readOptions(l *launch) *failure {
	for name, may := range map[string][]string{
		"InstanceInitiatedShutdownBehavior":                              {"stop", "terminate"},
		"InstanceMarketOptions.MarketType":                               {"spot"},
		"InstanceMarketOptions.SpotOptions.SpotInstanceType":             {"one-time", "persistent"},
		"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": {"terminate", "stop", "hibernate"},
		"MetadataOptions.HttpTokens":                                     {"required", "optional"},
		"BlockDeviceMapping.1.Ebs.VolumeType":                            {"gp2", "gp3", "io1", "io2", "st1", "sc1", "standard"},
		"BlockDeviceMapping.1.Ebs.DeleteOnTermination":                   {"true", "false"},
		"BlockDeviceMapping.1.Ebs.Encrypted":                             {"true", "false"},
		"NetworkInterface.1.DeleteOnTermination":                         {"true", "false"},
		"NetworkInterface.1.AssociatePublicIpAddress":                    {"true", "false"},
	} {
		if v := c.form.Get(name); v != "" && !slices.Contains(may, v) {
			return fail(400, "InvalidParameterValue", "Value (%s) for parameter %s is invalid.", v, name)
		}
	}
	l.spot = c.form.Get("InstanceMarketOptions.MarketType") == "spot"
	if l.spot && l.kind.Spot == 0 {
		return fail(400, "InvalidParameterValue", "The instance type %s is not supported for Spot", l.kind.Name)
	}
	// 8 GiB is the size of the snapshot of the images here. A smaller disk cannot hold it.
	l.size, l.keepVolume = 8, c.form.Get("BlockDeviceMapping.1.Ebs.DeleteOnTermination") == "false"
	if v := c.form.Get("BlockDeviceMapping.1.Ebs.VolumeSize"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 8 || n > 64<<10 {
			return fail(400, "InvalidBlockDeviceMapping", "Volume of size %sGB is smaller than snapshot, or too large", v)
		}
		l.size = n
	}
	// Under another device name EC2 would make a second disk and leave the root as small as the image.
	if c.form.Has("BlockDeviceMapping.1.Ebs.VolumeSize") && c.form.Get("BlockDeviceMapping.1.DeviceName") != l.image.Root {
		return fail(400, "InvalidBlockDeviceMapping", "The device %q is not the root device of the image", c.form.Get("BlockDeviceMapping.1.DeviceName"))
	}
	return nil
}

// runInstances checks the launch before its token: a form that is wrong uses none up.
func (c *call) runInstances() (string, *failure) {
	l, refused := c.readLaunch()
	if refused != nil {
		return "", refused
	}
	if c.form.Get("DryRun") == "true" {
		return "", dryRun
	}
	s := c.s
	// The token of a launch in a subnet is known in the subnet's zone only.
	key, query := l.subnet.Zone+"/"+c.form.Get("ClientToken"), c.query()
	s.mu.Lock()
	// A launch that was refused keeps its parameters too: a driver that changes them under the same token
	// is refused for ever, also once there is capacity.
	used := s.tokens[key]
	if c.form.Get("ClientToken") == "" {
		used = nil
	}
	if used != nil {
		busy := s.striking("token", "busy", s.wanted(c.form)) != nil
		s.mu.Unlock()
		return c.replay(used, query, busy)
	}
	used = &usedToken{query: query, done: make(chan struct{})}
	if c.form.Get("ClientToken") != "" {
		s.tokens[key] = used
	}
	// Only after the answer was given, whole or not: until then a second call with the token waits.
	c.finished = func() { close(used.done) }
	n, refused := s.admit(l, s.wanted(c.form))
	if refused == nil {
		for k := range n {
			used.made = append(used.made, s.make(c, l, k))
		}
	}
	s.mu.Unlock()
	if refused != nil {
		return "", refused
	}
	// A machine takes a tenth of a second to come. Without the lock, other calls go on meanwhile.
	s.startMachines(used.made)
	s.mu.Lock()
	defer s.mu.Unlock()
	return launched(used.made, true), nil
}

// startMachines starts what stands behind new instances. mu is not held.
func (s *Server) startMachines(made []*instance) {
	if s.cfg.Machines == nil {
		return
	}
	for _, i := range made {
		address, err := s.cfg.Machines.StartInLaunch(i.id, i.index, i.userData)
		s.mu.Lock()
		// An instance whose machine did not come is one that EC2 accepted and ended.
		if err != nil {
			i.end(s.now(), "Server.InternalError: "+err.Error())
		} else if address != "" {
			i.address = address
		}
		i.booted = true
		fate, over := i.fateAt, i.over()
		s.mu.Unlock()
		if over {
			// It was ended meanwhile, and whoever ended it found no machine to stop.
			s.cfg.Machines.Stop(i.id)
		} else if !fate.IsZero() {
			time.AfterFunc(time.Until(fate), func() { s.cfg.Machines.Stop(i.id) })
		}
	}
}

// launched is the answer of a launch. Its instances have their tags here even where lists show them
// later, unless it is a replay and the script says otherwise.
func launched(made []*instance, tags bool) string {
	items := ""
	for _, i := range made {
		shown := i.tags
		if !tags {
			shown = nil
		}
		items += i.xml(shown)
	}
	return el("reservationId", made[0].reservation) + el("ownerId", "123456789012") + "<groupSet/>" + nest("instancesSet", items)
}

// replay answers a launch whose token was used before.
func (c *call) replay(used *usedToken, query string, busy bool) (string, *failure) {
	// All parameters count, user data and tags included: one byte makes it another request.
	if used.query != query {
		return "", fail(400, "IdempotentParameterMismatch", "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).")
	}
	select {
	case <-used.done:
	default:
		if busy {
			return "", fail(500, "InternalError", "An internal error has occurred")
		}
		select {
		case <-used.done:
		case <-c.ctx.Done():
			return "", fail(500, "InternalError", "The caller has left")
		}
	}
	s := c.s
	s.mu.Lock()
	defer s.mu.Unlock()
	about := s.wanted(c.form)
	if len(used.made) == 0 {
		// Refused before: it is tried again, and only with the same parameters.
		l, refused := c.readLaunch()
		if refused != nil {
			return "", refused
		}
		n, refused := s.admit(l, about)
		if refused != nil {
			return "", refused
		}
		for k := range n {
			used.made = append(used.made, s.make(c, l, k))
		}
		if s.cfg.Machines != nil {
			made := slices.Clone(used.made)
			s.mu.Unlock()
			s.startMachines(made)
			s.mu.Lock()
		}
		return launched(used.made, true), nil
	}
	for _, i := range used.made {
		// Since January 2025 an error; before that, the answer was the dead instance, which drivers took for
		// a new one.
		if i.advance(s.now()); i.over() && s.striking("token", "corpse", about) == nil {
			return "", fail(400, "IdempotentInstanceTerminated", "The instances of this client token have been terminated: %s", i.id)
		}
	}
	return launched(used.made, s.striking("token", "untagged", about) == nil), nil
}

// admit is how many instances there is capacity for. mu is held.
func (s *Server) admit(l *launch, about subject) (int, *failure) {
	// What has ended by now has given its address back, if it had one.
	s.settle()
	n := l.most
	if s.striking("create", "capacity", about) != nil {
		return 0, fail(500, "InsufficientInstanceCapacity", "We currently do not have sufficient %s capacity in the Availability Zone you requested (%s).", l.kind.Name, l.subnet.Zone)
	}
	// Between MinCount and MaxCount EC2 makes what it has.
	if p := s.striking("create", "partial", about); p != nil {
		if n = min(n, p.number("max")); n < l.least {
			return 0, fail(500, "InsufficientInstanceCapacity", "Insufficient capacity.")
		}
	}
	if n = min(n, s.free(l.subnet)); n < l.least {
		return 0, fail(400, "InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet '%s' to satisfy the requested number of instances.", l.subnet.ID)
	}
	if q := s.striking("account", "quota", subject{family: l.kind.Family, market: about.market}); q != nil {
		used := 0
		// Stopped instances count for no quota, and ended ones for a while: a driver that replaces a machine
		// at once can be refused.
		for _, i := range s.instances {
			if i.kind.Family == l.kind.Family && (i.state != stopped) && (!i.over() || s.now().Sub(i.ended) < countsOn) {
				used += i.kind.CPUs
			}
		}
		if n = min(n, (q.number("max")-used)/l.kind.CPUs); n < l.least {
			if l.spot {
				return 0, fail(400, "MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
			}
			return 0, fail(400, "VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit of %d allows for the instance bucket that the specified instance type belongs to.", q.number("max"))
		}
	}
	return n, nil
}

// make makes instance k of a launch, with its volume. mu is held.
func (s *Server) make(c *call, l *launch, k int) *instance {
	i := s.enter(l.kind, l.subnet, s.wanted(c.form))
	i.index, i.reservation, i.ami, i.token, i.spot = k, "r-"+c.request, l.image.ID, c.form.Get("ClientToken"), l.spot
	i.userData, i.onPoweroff = l.userData, cmp.Or(c.form.Get("InstanceInitiatedShutdownBehavior"), "stop")
	setTags(&i.tags, l.tags["instance"])
	setTags(&i.requestTags, l.tags["spot-instances-request"])
	// The request outlives the instance in lists, and is where a notice shows.
	if l.spot {
		i.request = fmt.Sprintf("sir-%08x", i.n)
	}
	if l.public {
		i.public = fmt.Sprintf("198.51.%d.%d", i.n>>8&255, i.n&255)
	}
	// Each instance has one disk, in its zone. What becomes of it is seen when the instance has ended.
	v := &volume{id: fmt.Sprintf("vol-%017x", i.n), instance: i.id, zone: i.zone, size: l.size, keep: l.keepVolume || i.leaves, created: i.created}
	setTags(&v.tags, maps.Clone(l.tags["volume"]))
	s.volumes = append(s.volumes, v)
	return i
}

// dryRun is a refusal that means yes.
var dryRun = fail(412, "DryRunOperation", "Request would have succeeded, but DryRun flag is set.")
