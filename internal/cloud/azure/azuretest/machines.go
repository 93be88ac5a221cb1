package azuretest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// id is the id of a sub-resource.
type id struct {
	ID string `json:"id"`
}

// create is the body of a create: the fields that this stand-in knows.
type create struct {
	Location   string            `json:"location"`
	Zones      []string          `json:"zones"`
	Tags       map[string]string `json:"tags"`
	Properties struct {
		HardwareProfile struct {
			VMSize string `json:"vmSize"`
		} `json:"hardwareProfile"`
		NetworkProfile struct {
			Version        string      `json:"networkApiVersion"`
			Configurations []nicConfig `json:"networkInterfaceConfigurations"`
		} `json:"networkProfile"`
		StorageProfile struct {
			Image struct {
				ID        string `json:"id"`
				Publisher string `json:"publisher"`
				Offer     string `json:"offer"`
				SKU       string `json:"sku"`
				Version   string `json:"version"`
			} `json:"imageReference"`
			Disk struct {
				Name         string `json:"name"`
				CreateOption string `json:"createOption"`
				DeleteOption string `json:"deleteOption"`
				Size         int    `json:"diskSizeGB"`
				Managed      struct {
					Type string `json:"storageAccountType"`
				} `json:"managedDisk"`
			} `json:"osDisk"`
		} `json:"storageProfile"`
		OSProfile struct {
			Name       string `json:"computerName"`
			User       string `json:"adminUsername"`
			CustomData string `json:"customData"`
			Linux      struct {
				NoPasswords bool `json:"disablePasswordAuthentication"`
				SSH         struct {
					Keys []struct {
						Data string `json:"keyData"`
						Path string `json:"path"`
					} `json:"publicKeys"`
				} `json:"ssh"`
			} `json:"linuxConfiguration"`
		} `json:"osProfile"`
		Priority string `json:"priority"`
		Eviction string `json:"evictionPolicy"`
		Billing  *struct {
			MaxPrice float64 `json:"maxPrice"`
		} `json:"billingProfile"`
	} `json:"properties"`
}

// nicConfig is a network interface that is made with a machine.
type nicConfig struct {
	Name       string            `json:"name"`
	Tags       map[string]string `json:"tags"`
	Properties struct {
		Primary      bool   `json:"primary"`
		DeleteOption string `json:"deleteOption"`
		Security     *id    `json:"networkSecurityGroup"`
		IPs          []struct {
			Name       string `json:"name"`
			Properties struct {
				Primary bool `json:"primary"`
				Subnet  *id  `json:"subnet"`
				Public  *struct {
					Name string            `json:"name"`
					Tags map[string]string `json:"tags"`
					SKU  struct {
						Name string `json:"name"`
					} `json:"sku"`
					Properties struct {
						DeleteOption string `json:"deleteOption"`
						Method       string `json:"publicIPAllocationMethod"`
					} `json:"properties"`
				} `json:"publicIPAddressConfiguration"`
			} `json:"properties"`
		} `json:"ipConfigurations"`
	} `json:"properties"`
}

// vm is a machine.
type vm struct {
	name, state, power string
	create             create
	body               []byte
	tags               map[string]string
	created            time.Time
	// hidden is until when lists lack it.
	hidden time.Time
	// why is the error with which it has failed.
	why  refused
	keep bool // its parts stay when it goes

	// booted: what stands behind it was started, and is not to be stopped.
	booted bool
	// evicted: Azure has begun to take it. ends is when it is gone.
	evicted bool
	ends    time.Time
}

type refused struct{ Code, Message string }

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$`)

// check is what Azure finds wrong with a create at once.
func (q *create) check() *refused {
	s := &q.Properties
	bad := func(target, text string) *refused {
		return &refused{"InvalidParameter", "The value of parameter " + target + " is invalid: " + text}
	}
	size := sizeNamed(s.HardwareProfile.VMSize)
	nics := s.NetworkProfile.Configurations
	custom, err := base64.StdEncoding.DecodeString(s.OSProfile.CustomData)
	switch {
	case q.Location != Location:
		return &refused{"LocationNotAvailableForResourceType", "The location '" + q.Location + "' is not available."}
	case size == nil:
		return bad("vmSize", "no such size")
	case len(q.Zones) > 1 || len(q.Zones) == 1 && !slices.Contains(size.zones, q.Zones[0]):
		return bad("zones", "no such zone")
	case s.NetworkProfile.Version == "":
		return bad("networkApiVersion", "it is required with networkInterfaceConfigurations")
	case len(nics) != 1 || len(nics[0].Properties.IPs) != 1 || nics[0].Properties.IPs[0].Properties.Subnet == nil:
		return bad("networkInterfaceConfigurations", "one with one address in a subnet")
	case !strings.EqualFold(nics[0].Properties.IPs[0].Properties.Subnet.ID, Subnet):
		return &refused{"InvalidResourceReference", "The subnet was not found."}
	case slices.Contains([]string{"", "root", "admin"}, s.OSProfile.User):
		return bad("adminUsername", "the name is not allowed")
	case !s.OSProfile.Linux.NoPasswords || len(s.OSProfile.Linux.SSH.Keys) == 0 || !strings.HasPrefix(s.OSProfile.Linux.SSH.Keys[0].Data, "ssh-"):
		return bad("linuxConfiguration.ssh.publicKeys.keyData", "a key is required")
	case s.OSProfile.Linux.SSH.Keys[0].Path != "/home/"+s.OSProfile.User+"/.ssh/authorized_keys":
		return bad("linuxConfiguration.ssh.publicKeys.path", "must be that of the user")
	case err != nil || len(custom) > 65535:
		return bad("customData", "base64 of at most 65535 bytes")
	case !hostName.MatchString(s.OSProfile.Name):
		return bad("computerName", "is not a host name")
	case len(q.Tags) > 50:
		return &refused{"InvalidTagsCount", "too many tags"}
	case s.StorageProfile.Image.ID == "" && versionOf(s.StorageProfile.Image.Publisher, s.StorageProfile.Image.Offer, s.StorageProfile.Image.SKU) != s.StorageProfile.Image.Version:
		return &refused{"PlatformImageNotFound", "The platform image is not available."}
	case (s.Priority == "Spot") != (s.Billing != nil) || s.Priority == "Spot" && s.Eviction == "":
		return bad("billingProfile", "of spot machines only, with an eviction policy")
	}
	return nil
}

// quotaLocked is the refusal of a create for want of a quota.
func (c *Cloud) quotaLocked(q *create) *refused {
	size := sizeNamed(q.Properties.HardwareProfile.VMSize)
	family := size.family
	if q.Properties.Priority == "Spot" {
		family = "lowPriorityCores"
	}
	limit, used := c.limit(family), c.usedLocked(family)
	if used+size.cpus <= limit {
		return nil
	}
	return &refused{"OperationNotAllowed", fmt.Sprintf("Operation could not be completed as it results in exceeding approved %s Cores quota. Additional details - Deployment Model: Resource Manager, "+
		"Location: %s, Current Limit: %d, Current Usage: %d, Additional Required: %d, (Minimum) New Limit Required: %d.", family, Location, limit, used, size.cpus, used+size.cpus)}
}

func (c *Cloud) limit(family string) int {
	if l, ok := c.options.Quotas[family]; ok {
		return l
	}
	return 1000
}

func (c *Cloud) usedLocked(family string) int {
	used := 0
	for _, m := range c.vms {
		s := sizeNamed(m.create.Properties.HardwareProfile.VMSize)
		if of := map[bool]string{true: "lowPriorityCores", false: s.family}[m.create.Properties.Priority == "Spot"]; of == family {
			used += s.cpus
		}
	}
	return used
}

func (c *Cloud) putVM(w http.ResponseWriter, r *http.Request) {
	var raw json.RawMessage
	var q create
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		refuse(w, http.StatusBadRequest, "InvalidRequestContent", err.Error())
		return
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		refuse(w, http.StatusBadRequest, "InvalidRequestContent", err.Error())
		return
	}
	name := r.PathValue("name")
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.vms[name]; old != nil {
		switch {
		case r.Header.Get("If-None-Match") == "*":
			refuse(w, http.StatusPreconditionFailed, "ConditionNotMet", "The precondition given in the request header If-None-Match is not met.")
		case !bytes.Equal(old.body, raw):
			refuse(w, http.StatusConflict, "PropertyChangeNotAllowed", "Changing property is not allowed.")
		default:
			standin.JSON(w, http.StatusOK, c.jsonLocked(old, false))
		}
		return
	}
	why := q.check()
	if why == nil {
		why = c.quotaLocked(&q)
	}
	if why != nil {
		refuse(w, statusOf(why.Code), why.Code, why.Message)
		return
	}
	m := &vm{name: name, state: "Creating", create: q, body: raw, tags: q.Tags, created: c.now().UTC().Truncate(time.Millisecond), hidden: c.hiddenLocked()}
	c.vms[name] = m
	c.ever = append(c.ever, Made{ID: name, Token: q.Tags["muster-token"]})
	c.addPartsLocked(m)
	c.startLocked(name)
	fails := ""
	if len(c.fails) > 0 {
		fails, c.fails = c.fails[0], c.fails[1:]
	} else if l := c.strikesLocked("operation"); l != nil {
		fails = wireErr(l.code, "played by the script")
	}
	c.acceptLocked(w, r, name, Create, fails)
	standin.JSON(w, http.StatusCreated, c.jsonLocked(m, false))
}

// acceptLocked begins an operation and names it in the header.
func (c *Cloud) acceptLocked(w http.ResponseWriter, r *http.Request, name, kind, fails string) {
	op := strconv.Itoa(c.numberLocked())
	c.operations[op] = &operation{vm: name, kind: kind, ends: c.now().Add(c.options.OperationTime), fails: fails}
	w.Header().Set("Azure-AsyncOperation", here(r)+"/subscriptions/"+Subscription+"/providers/Microsoft.Compute/locations/"+Location+"/operations/"+op+"?api-version=2025-04-01")
	w.Header().Set("Retry-After", "10")
	if c.options.OperationTime == 0 {
		c.settleLocked()
	}
}

// settleLocked ends the operations whose time is over and what Azure takes, and notes machines that have
// shut down.
func (c *Cloud) settleLocked() {
	for _, m := range c.vms {
		switch {
		case m.evicted && !c.now().Before(m.ends):
			m.evicted = false
			c.evictLocked(m)
		case m.booted && m.power == "running" && !c.options.Machines.State(m.name):
			m.power = "stopped" // and billed on
		}
	}
	for _, o := range c.operations {
		if o.done || c.now().Before(o.ends) {
			continue
		}
		o.done = true
		m := c.vms[o.vm]
		switch {
		case m == nil:
		case o.fails != "":
			m.state, m.power = "Failed", ""
			_ = json.Unmarshal([]byte(o.fails), &m.why)
		case o.kind == Create, o.kind == Start:
			m.state, m.power = "Succeeded", "running"
			if o.kind == Start && !m.booted {
				c.startLocked(m.name)
			}
		case o.kind == Stop:
			m.state, m.power, m.booted = "Succeeded", "deallocated", false
			c.stopLocked(m.name)
		case o.kind == Delete:
			c.dropLocked(m)
		}
	}
}

func (c *Cloud) pollOperation(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.operations[r.PathValue("id")]
	switch {
	case o == nil:
		refuse(w, http.StatusNotFound, "NotFound", "The entity was not found.")
	case !o.done:
		standin.JSON(w, http.StatusOK, map[string]any{"name": r.PathValue("id"), "status": "InProgress"})
	case o.fails != "":
		standin.JSON(w, http.StatusOK, map[string]any{"name": r.PathValue("id"), "status": "Failed", "error": json.RawMessage(o.fails)})
	default:
		standin.JSON(w, http.StatusOK, map[string]any{"name": r.PathValue("id"), "status": "Succeeded"})
	}
}

// jsonLocked is a machine as Azure writes it. It changes the case of ids.
func (c *Cloud) jsonLocked(m *vm, view bool) map[string]any {
	s := &m.create.Properties
	properties := map[string]any{"provisioningState": m.state, "timeCreated": m.created.Format(time.RFC3339Nano), "vmId": "0-" + m.name,
		"hardwareProfile": s.HardwareProfile, "osProfile": map[string]any{"computerName": s.OSProfile.Name, "adminUsername": s.OSProfile.User}}
	if s.Priority != "" {
		properties["priority"], properties["evictionPolicy"] = s.Priority, s.Eviction
	}
	if view {
		code := "ProvisioningState/" + strings.ToLower(m.state)
		if m.why.Code != "" {
			code += "/" + m.why.Code
		}
		statuses := []any{map[string]any{"code": code, "level": "Info", "message": m.why.Message}}
		if m.power != "" {
			statuses = append(statuses, map[string]any{"code": "PowerState/" + m.power, "level": "Info"})
		}
		properties["instanceView"] = map[string]any{"statuses": statuses}
	}
	out := map[string]any{"id": "/subscriptions/" + Subscription + "/resourceGroups/" + strings.ToUpper(Group) + "/providers/Microsoft.Compute/virtualMachines/" + m.name,
		"name": m.name, "type": "Microsoft.Compute/virtualMachines", "location": Location, "tags": m.tags, "properties": properties}
	if len(m.create.Zones) > 0 {
		out["zones"] = m.create.Zones
	}
	return out
}

// with answers for one machine.
func (c *Cloud) with(w http.ResponseWriter, r *http.Request, do func(*vm)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.vms[r.PathValue("name")]
	if m == nil {
		refuse(w, http.StatusNotFound, "ResourceNotFound", "The Resource 'Microsoft.Compute/virtualMachines/"+r.PathValue("name")+"' under resource group '"+Group+"' was not found.")
		return
	}
	do(m)
}

func (c *Cloud) getVM(w http.ResponseWriter, r *http.Request) {
	c.with(w, r, func(m *vm) {
		standin.JSON(w, http.StatusOK, c.jsonLocked(m, r.URL.Query().Get("$expand") == "instanceView"))
	})
}

func (c *Cloud) patchVM(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tags map[string]string `json:"tags"`
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil {
		refuse(w, http.StatusBadRequest, "InvalidRequestContent", err.Error())
		return
	}
	c.with(w, r, func(m *vm) {
		if m.state == "Deleting" {
			refuse(w, http.StatusConflict, "OperationNotAllowed", "Operation 'updateVM' is not allowed on VM since it is marked for deletion.")
			return
		}
		m.tags = q.Tags
		standin.JSON(w, http.StatusOK, c.jsonLocked(m, false))
	})
}

// deleteVM deletes after a while, with the parts that were made with the machine.
func (c *Cloud) deleteVM(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.vms[r.PathValue("name")]
	if m == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	m.state = "Deleting"
	m.keep = c.strikesLocked("leave") != nil
	c.acceptLocked(w, r, m.name, Delete, "")
	w.WriteHeader(http.StatusAccepted)
}

// power starts or deallocates.
func (c *Cloud) power(w http.ResponseWriter, r *http.Request, kind string) {
	c.with(w, r, func(m *vm) {
		m.state = "Updating"
		fails := ""
		if l := c.strikesLocked(kind + "-operation"); l != nil {
			fails = wireErr(l.code, "played by the script")
		}
		c.acceptLocked(w, r, m.name, kind, fails)
		w.WriteHeader(http.StatusAccepted)
	})
}

func (c *Cloud) listVMs(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	names := make([]string, 0, len(c.vms))
	for name, m := range c.vms {
		if !c.now().Before(m.hidden) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	all := make([]any, len(names))
	for i, name := range names {
		all[i] = c.jsonLocked(c.vms[name], false)
	}
	c.mu.Unlock()
	c.page(w, r, all)
}
