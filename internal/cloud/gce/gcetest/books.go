package gcetest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// machine is an instance.
type machine struct {
	v    object
	made time.Time
	// booted: its machine was started, and is not to be stopped.
	booted bool
	// preempted: the cloud has begun to take it. ends is when it is gone.
	preempted bool
	ends      time.Time
}

func (m *machine) relabel(labels map[string]any) {
	m.v["labels"] = labels
	m.v["labelFingerprint"] = fingerprint(labels)
}

func (m *machine) is(status string) { m.v["status"] = status }

// fingerprint follows from labels, as the real one.
func fingerprint(labels map[string]any) string {
	h := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		_, _ = fmt.Fprint(h, k, "=", labels[k], ";")
	}
	return base64.StdEncoding.EncodeToString(h.Sum(nil)[:8])
}

// operation is what changes something, at its end.
type operation struct {
	v    object
	ends time.Time
	do   func()
}

// Zones are those of the project.
var Zones = []string{"europe-west1-b", "europe-west1-c", "us-central1-a"}

// machineTypes are those of every zone.
var machineTypes = []object{
	{"name": "n2-standard-2", "guestCpus": 2, "memoryMb": 8192, "architecture": "X86_64"},
	{"name": "n2-standard-4", "guestCpus": 4, "memoryMb": 16384, "architecture": "X86_64"},
	{"name": "n2-standard-48", "guestCpus": 48, "memoryMb": 196608, "architecture": "X86_64"},
	{"name": "e2-micro", "guestCpus": 2, "memoryMb": 1024, "isSharedCpu": true},
	{"name": "c4a-standard-4", "guestCpus": 4, "memoryMb": 16384, "architecture": "ARM64"},
	{"name": "a2-highgpu-1g", "guestCpus": 12, "memoryMb": 87040, "accelerators": []any{object{"guestAcceleratorType": "nvidia-tesla-a100", "guestAcceleratorCount": 1}}},
	{"name": "a2-ultragpu-2g", "guestCpus": 24, "memoryMb": 348160, "accelerators": []any{object{"guestAcceleratorType": "nvidia-a100-80gb", "guestAcceleratorCount": 2}}},
	{"name": "g2-standard-4", "guestCpus": 4, "memoryMb": 16384, "accelerators": []any{object{"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 1}}},
	{"name": "ct5lp-hightpu-1t", "guestCpus": 24, "memoryMb": 49152, "accelerators": []any{object{"guestAcceleratorType": "ct5lp", "guestAcceleratorCount": 1}}},
	{"name": "t2a-standard-2", "guestCpus": 2, "memoryMb": 8192, "architecture": "ARM64"},
	{"name": "n1-standard-8", "guestCpus": 8, "memoryMb": 30720, "architecture": "X86_64"},
	{"name": "n1-standard-64", "guestCpus": 64, "memoryMb": 245760, "architecture": "X86_64"},
	{"name": "n1-standard-1", "guestCpus": 1, "memoryMb": 3840, "deprecated": object{"state": "DEPRECATED"}},
}

// acceleratorTypes are what can be attached in every zone: GPUs, a licence of a virtual workstation,
// and a TPU.
var acceleratorTypes = []object{
	{"name": "nvidia-tesla-t4", "maximumCardsPerInstance": 4},
	{"name": "nvidia-tesla-t4-vws", "maximumCardsPerInstance": 4},
	{"name": "nvidia-tesla-v100", "maximumCardsPerInstance": 8},
	{"name": "nvidia-l4", "maximumCardsPerInstance": 8},
	{"name": "ct5lp", "maximumCardsPerInstance": 8},
}

// named finds the thing of a name; nil: there is none.
func named(list []object, name string) object {
	if i := slices.IndexFunc(list, func(t object) bool { return t["name"] == name }); i >= 0 {
		return list[i]
	}
	return nil
}

func sorted[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// settleLocked ends the operations whose time is over, and what the cloud takes, and notes machines that
// have shut down.
func (c *Cloud) settleLocked() {
	now := c.now()
	for _, id := range sorted(c.instances) {
		switch m := c.instances[id]; {
		case m.preempted && !now.Before(m.ends):
			m.preempted = false
			c.preemptLocked(id, m)
		case c.behind != nil && m.booted && m.v["status"] == "RUNNING" && !c.behind.State(id):
			m.is("TERMINATED")
		}
	}
	for _, name := range sorted(c.operations) {
		if o := c.operations[name]; o.v["status"] != "DONE" && !now.Before(o.ends) {
			o.v["status"] = "DONE"
			if o.do != nil {
				o.do()
			}
		}
	}
}

// operateLocked begins an operation that does something at its end.
func (c *Cloud) operateLocked(a about, kind, target string, do func()) *operation {
	c.last++
	o := &operation{ends: c.now(), do: do, v: object{"name": "operation-" + strconv.Itoa(c.last), "status": "RUNNING", "operationType": kind,
		"targetLink": target, "insertTime": stamp(c.now())}}
	if l := c.strikingLocked("operation", "takes", a); l != nil {
		o.ends = o.ends.Add(l.span())
	}
	c.operations[o.v["name"].(string)] = o
	c.settleLocked()
	return o
}

// doLocked answers a request.
func (c *Cloud) doLocked(q *request) (any, *refusal) {
	project, zone := q.in["project"], q.in["zone"]
	if project != Project && !(project == ProjectImages && strings.HasPrefix(q.method, "images.")) {
		return nil, refuse(http.StatusForbidden, "forbidden", "Required permission for 'projects/"+project+"'")
	}
	if zone != "" && !slices.Contains(Zones, zone) {
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'zone': '"+zone+"'. Unknown zone.")
	}
	resource, _, _ := strings.Cut(q.method, ".")
	switch resource {
	case "instances":
		return c.instanceLocked(q)
	case "zoneOperations":
		o := c.operations[q.in["operation"]]
		if o == nil {
			return nil, missing("operations/" + q.in["operation"])
		}
		return o.v, nil // wait may answer at once, too
	case "machineTypes":
		return object{"items": machineTypes}, nil
	case "acceleratorTypes":
		return object{"items": acceleratorTypes}, nil
	case "regions":
		return object{"name": q.in["region"], "quotas": []any{object{"metric": "N2_CPUS", "limit": 24, "usage": 4},
			object{"metric": "NVIDIA_T4_GPUS", "limit": 2, "usage": 1}, object{"metric": "COMMITTED_NVIDIA_T4_GPUS", "limit": 0, "usage": 0},
			object{"metric": "PREEMPTIBLE_NVIDIA_T4_GPUS", "limit": 0, "usage": 0}, object{"metric": "PREEMPTIBLE_CPUS", "limit": 0, "usage": 0}, object{"metric": "IN_USE_ADDRESSES", "limit": 8, "usage": 1}}}, nil
	case "zones":
		return object{"name": zone, "status": "UP"}, nil
	case "subnetworks":
		if q.in["subnetwork"] != "default" {
			return nil, missing("subnetworks/" + q.in["subnetwork"])
		}
		return object{"name": "default", "ipCidrRange": "10.132.0.0/20"}, nil
	case "images":
		return imageOf(q)
	case "disks":
		return c.thingLocked(q, c.disks, "disks", "zones/", zone+"/"+q.in["disk"])
	}
	return c.thingLocked(q, c.ips, "addresses", "regions/", q.in["region"]+"/"+q.in["address"])
}

func missing(path string) *refusal {
	return refuse(http.StatusNotFound, "notFound", "The resource 'projects/"+Project+"/"+path+"' was not found")
}

// imageOf knows Ubuntu's families of 22.04 and 24.04, and one image of the project.
func imageOf(q *request) (any, *refusal) {
	name := q.in["family"] + q.in["image"]
	arch, ok := map[string]string{"ubuntu-2404-lts-amd64": "X86_64", "ubuntu-2404-lts-arm64": "ARM64", "ubuntu-2204-lts": "X86_64",
		"ubuntu-2204-lts-arm64": "ARM64", "nodes-1": "X86_64"}[name]
	if !ok || (name == "nodes-1") != (q.in["project"] == Project) {
		return nil, missing("images/" + name)
	}
	return object{"name": name + "-v20260801", "architecture": arch}, nil
}

func (c *Cloud) instanceLocked(q *request) (any, *refusal) {
	switch q.method {
	case "instances.insert":
		return c.insertLocked(q)
	case "instances.aggregatedList":
		all := map[string]object{}
		late := time.Duration(0)
		if l := c.strikingLocked("list", "late", about{}); l != nil {
			late = l.span()
		}
		for id, m := range c.instances {
			if c.now().Sub(m.made) >= late {
				all[id] = m.v
			}
		}
		return c.pageLocked(q, all, "instances", "zones/")
	}
	zone, id := q.in["zone"], q.in["zone"]+"/"+q.in["instance"]
	m := c.instances[id]
	if m == nil {
		return nil, missing("zones/" + zone + "/instances/" + q.in["instance"])
	}
	a, status := about{method: q.method, zone: zone}, m.v["status"].(string)
	// begin is an operation that ends in a state.
	begin := func(meanwhile, then string) (any, *refusal) {
		m.is(meanwhile)
		return c.operateLocked(a, lastOf(q.method), id, func() { m.is(then) }).v, nil
	}
	switch q.method {
	case "instances.get":
		return m.v, nil
	case "instances.delete":
		m.is("STOPPING")
		return c.operateLocked(a, "delete", id, func() { c.dropLocked(id, m) }).v, nil
	case "instances.setLabels":
		if q.body["labelFingerprint"] != m.v["labelFingerprint"] {
			return nil, refuse(http.StatusPreconditionFailed, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
		}
		labels, _ := q.body["labels"].(object)
		if err := badLabels(labels); err != nil {
			return nil, err
		}
		m.relabel(labels)
		return c.operateLocked(a, "setLabels", id, nil).v, nil
	case "instances.getGuestAttributes":
		return guestAttributes(id), nil
	case "instances.stop":
		m.booted = false
		c.stopLocked(id)
		return begin("STOPPING", "TERMINATED")
	case "instances.start":
		if status != "TERMINATED" && status != "RUNNING" {
			return nil, refuse(http.StatusBadRequest, "resourceNotReady", "The resource is not ready")
		}
		if c.behind != nil && status == "TERMINATED" {
			m.booted = false
			c.starts = append(c.starts, id)
		}
		return begin("STAGING", "RUNNING")
	case "instances.suspend":
		if status != "RUNNING" {
			return nil, refuse(http.StatusBadRequest, "resourceNotReady", "The resource is not ready")
		}
		return begin("SUSPENDING", "SUSPENDED")
	}
	if status != "SUSPENDED" {
		return nil, refuse(http.StatusBadRequest, "invalidUsage", "Instance is not suspended")
	}
	return begin("PROVISIONING", "RUNNING")
}

// guestAttributes has a host key that follows from the id.
func guestAttributes(id string) object {
	seed := sha256.Sum256([]byte(id))
	key, err := ssh.NewPublicKey(ed25519.NewKeyFromSeed(seed[:]).Public())
	if err != nil {
		panic(err) // such a key can be made always
	}
	return object{"queryPath": "hostkeys/", "queryValue": object{"items": []any{
		object{"namespace": "hostkeys", "key": key.Type(), "value": base64.StdEncoding.EncodeToString(key.Marshal())}}}}
}
