package gcetest

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

var (
	resourceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	labelKey     = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	labelValue   = regexp.MustCompile(`^[a-z0-9_-]{0,63}$`)
	uuid         = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	imagePath    = regexp.MustCompile(`^projects/([^/]+)/global/images/(?:(family)/)?([^/]+)$`)
	subnetPath   = regexp.MustCompile(`^projects/[^/]+/regions/([^/]+)/subnetworks/([^/]+)$`)
)

func badLabels(labels object) *refusal {
	for k, v := range labels {
		if s, ok := v.(string); !ok || !labelKey.MatchString(k) || !labelValue.MatchString(s) {
			return refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("Invalid value for field 'labels': '%s=%v'", k, v))
		}
	}
	if len(labels) > 64 {
		return refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'labels': too many")
	}
	return nil
}

// insertLocked makes an instance with its disk, or refuses to.
func (c *Cloud) insertLocked(q *request) (any, *refusal) {
	request := q.get("requestId")
	if request != "" && !uuid.MatchString(request) {
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'requestId': '"+request+"'")
	}
	if o := c.requests[request]; request != "" && o != nil {
		return o.v, nil
	}
	zone := q.in["zone"]
	a, err := checkInsert(zone, q.body)
	if err != nil {
		return nil, err
	}
	a.method = q.method
	name := q.body["name"].(string)
	id := zone + "/" + name
	if c.instances[id] != nil {
		return nil, refuse(http.StatusConflict, "alreadyExists", "The resource 'projects/"+Project+"/zones/"+zone+"/instances/"+name+"' already exists")
	}
	if c.disks[id] != nil {
		return nil, refuse(http.StatusConflict, "alreadyExists", "The resource 'projects/"+Project+"/zones/"+zone+"/disks/"+name+"' already exists")
	}
	fails := c.strikingLocked("operation", "fails", a)
	m := c.makeLocked(zone, q.body)
	o := c.operateLocked(a, "insert", id, func() {
		if fails == nil {
			m.is("RUNNING")
			return
		}
		delete(c.instances, id)
		delete(c.disks, id)
		c.stopLocked(id)
	})
	if fails != nil {
		e := object{"code": fails.words[0], "message": "said so"}
		if metric := fails.at["metric"]; metric != "" {
			e["errorDetails"] = []any{object{"quotaInfo": object{"metricName": metric, "limitName": metric + "-per-project-region"}}}
		}
		o.v["error"], o.v["httpErrorStatusCode"] = object{"errors": []any{e}}, http.StatusServiceUnavailable
	}
	if request != "" {
		c.requests[request] = o
	}
	return o.v, nil
}

// checkInsert refuses what the document allows and the API does not.
func checkInsert(zone string, b object) (about, *refusal) {
	invalid := func(field string, value any) (about, *refusal) {
		return about{}, refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("Invalid value for field 'resource.%s': '%v'.", field, value))
	}
	name, _ := b["name"].(string)
	if !resourceName.MatchString(name) {
		return invalid("name", name)
	}
	kind, _ := b["machineType"].(string)
	kind, ok := strings.CutPrefix(kind, "zones/"+zone+"/machineTypes/")
	t := named(machineTypes, kind)
	if !ok || t == nil {
		return invalid("machineType", b["machineType"])
	}
	labels, _ := b["labels"].(object)
	if err := badLabels(labels); err != nil {
		return about{}, err
	}
	disks, _ := b["disks"].([]any)
	if len(disks) != 1 || disks[0].(object)["boot"] != true {
		return invalid("disks", disks)
	}
	disk, _ := disks[0].(object)["initializeParams"].(object)
	if disk == nil {
		return invalid("disks[0].initializeParams", nil)
	}
	if diskLabels, _ := disk["labels"].(object); badLabels(diskLabels) != nil {
		return about{}, badLabels(diskLabels)
	}
	image := imagePath.FindStringSubmatch(fmt.Sprint(disk["sourceImage"]))
	if image == nil {
		return invalid("disks[0].initializeParams.sourceImage", disk["sourceImage"])
	}
	got, err := imageOf(&request{in: map[string]string{"project": image[1], "image": image[3]}})
	if err != nil {
		return about{}, err
	}
	if has := got.(object)["architecture"]; (t["architecture"] == "ARM64") != (has == "ARM64") {
		return about{}, refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("Requested boot disk architecture (%v) is not compatible with machine type architecture (%v).", has, t["architecture"]))
	}
	if dt, _ := disk["diskType"].(string); !strings.HasPrefix(dt, "zones/"+zone+"/diskTypes/") {
		return invalid("disks[0].initializeParams.diskType", dt)
	}
	if err := checkAccelerators(zone, t, b); err != nil {
		return about{}, err
	}
	nics, _ := b["networkInterfaces"].([]any)
	if len(nics) != 1 {
		return invalid("networkInterfaces", nics)
	}
	subnet := subnetPath.FindStringSubmatch(fmt.Sprint(nics[0].(object)["subnetwork"]))
	if subnet == nil || !strings.HasPrefix(zone, subnet[1]+"-") {
		return invalid("networkInterfaces[0].subnetwork", nics[0].(object)["subnetwork"])
	}
	if subnet[2] != "default" {
		return about{}, missing("regions/" + subnet[1] + "/subnetworks/" + subnet[2])
	}
	if err := checkMetadata(b); err != nil {
		return about{}, err
	}
	return checkScheduling(zone, kind, b)
}

// checkAccelerators refuses GPUs that cannot be attached, and what has GPUs and is to move to another
// host.
func checkAccelerators(zone string, t, b object) *refusal {
	list, _ := b["guestAccelerators"].([]any)
	kind, _, _ := strings.Cut(t["name"].(string), "-")
	for _, a := range list {
		path, count := fmt.Sprint(a.(object)["acceleratorType"]), a.(object)["acceleratorCount"]
		name, ok := strings.CutPrefix(path, "projects/"+Project+"/zones/"+zone+"/acceleratorTypes/")
		have := named(acceleratorTypes, name)
		n, _ := count.(float64)
		if most, _ := have["maximumCardsPerInstance"].(int); !ok || have == nil || n < 1 || int(n) > most {
			return refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("Invalid value for field 'resource.guestAccelerators': '%s' x%v.", path, count))
		}
		if kind != "n1" {
			return refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("[%s, %s] features are not compatible for creating instance.", name, t["name"]))
		}
	}
	s, _ := b["scheduling"].(object)
	if (len(list) > 0 || t["accelerators"] != nil) && s["onHostMaintenance"] != "TERMINATE" {
		return refuse(http.StatusBadRequest, "badRequest", "Instances with guest accelerators do not support live migration.")
	}
	return nil
}

func checkMetadata(b object) *refusal {
	m, _ := b["metadata"].(object)
	items, _ := m["items"].([]any)
	for _, i := range items {
		if v, _ := i.(object)["value"].(string); len(v) > 256<<10 {
			return refuse(http.StatusBadRequest, "invalid", fmt.Sprintf("Value for metadata key %v (user-data) is too large: maximum size 262144 character(s)", i.(object)["key"]))
		}
	}
	return nil
}

// checkScheduling refuses spot that restarts by itself, and a bound on the run time without an action.
func checkScheduling(zone, kind string, b object) (about, *refusal) {
	a := about{zone: zone, kind: kind, market: "on-demand"}
	s, _ := b["scheduling"].(object)
	if s["provisioningModel"] == "SPOT" {
		a.market = "spot"
		if s["automaticRestart"] != false || s["onHostMaintenance"] != "TERMINATE" {
			return a, refuse(http.StatusBadRequest, "invalid", "Scheduling must have automaticRestart disabled and onHostMaintenance TERMINATE when Spot is used.")
		}
	}
	if s["maxRunDuration"] != nil && s["instanceTerminationAction"] == nil {
		return a, refuse(http.StatusBadRequest, "invalid", "instanceTerminationAction must be specified with maxRunDuration")
	}
	return a, nil
}

// makeLocked makes the instance, which is not running yet, and its disk.
func (c *Cloud) makeLocked(zone string, b object) *machine {
	const root = "https://www.googleapis.com/compute/v1/projects/" + Project + "/"
	c.last++
	name, now := b["name"].(string), c.now()
	m := &machine{v: b, made: now}
	b["id"], b["zone"], b["status"], b["creationTimestamp"] = fmt.Sprint(1000+c.last), root+"zones/"+zone, "PROVISIONING", stamp(now)
	// What a machine type has of its own is shown as what is attached.
	t := named(machineTypes, lastOf(b["machineType"].(string)))
	if own, _ := t["accelerators"].([]any); len(own) > 0 {
		o := own[0].(object)
		b["guestAccelerators"] = []any{object{"acceleratorCount": o["guestAcceleratorCount"],
			"acceleratorType": root + "zones/" + zone + "/acceleratorTypes/" + o["guestAcceleratorType"].(string)}}
	}
	b["machineType"] = root + b["machineType"].(string)
	labels, _ := b["labels"].(object)
	m.relabel(labels)
	disk := b["disks"].([]any)[0].(object)
	params := disk["initializeParams"].(object)
	delete(disk, "initializeParams")
	disk["source"] = root + "zones/" + zone + "/disks/" + name
	diskLabels, _ := params["labels"].(object)
	c.disks[zone+"/"+name] = object{"name": name, "labels": diskLabels, "status": "READY", "creationTimestamp": stamp(now),
		"users": []any{root + "zones/" + zone + "/instances/" + name}}
	token, _ := labels["muster-token"].(string)
	c.ever = append(c.ever, Made{ID: zone + "/" + name, Token: token})
	c.instances[zone+"/"+name] = m
	if c.behind != nil {
		// It has an address once its machine has one.
		c.starts = append(c.starts, zone+"/"+name)
		return m
	}
	nic := b["networkInterfaces"].([]any)[0].(object)
	nic["networkIP"] = fmt.Sprintf("10.132.%d.%d", c.last/250%250, c.last%250+2)
	if external, _ := nic["accessConfigs"].([]any); len(external) > 0 {
		external[0].(object)["natIP"] = fmt.Sprintf("198.51.%d.%d", c.last/250%250, c.last%250+2)
	}
	return m
}
