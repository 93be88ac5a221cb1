package azuretest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Kinds of parts.
const (
	kindNIC  = "nic"
	kindDisk = "disk"
	kindIP   = "ip"
)

// part is a network interface, a disk or a public address.
type part struct {
	name, kind string
	tags       map[string]string
	created    time.Time
	// vm is the machine that has it; empty: none.
	vm      string
	address string
	// public is the name of an interface's public address.
	public string
}

// addPartsLocked makes what is made with a machine. Azure gives a disk the tags of its machine.
func (c *Cloud) addPartsLocked(m *vm) {
	nic := m.create.Properties.NetworkProfile.Configurations[0]
	n := c.numberLocked()
	p := &part{name: nic.Name, kind: kindNIC, tags: nic.Tags, created: m.created, vm: m.name, address: fmt.Sprintf("10.0.%d.%d", n/250%250, n%250+4)}
	if public := nic.Properties.IPs[0].Properties.Public; public != nil {
		p.public = public.Name
		c.parts[kindIP][public.Name] = &part{name: public.Name, kind: kindIP, tags: public.Tags, created: m.created, vm: m.name, address: fmt.Sprintf("198.51.%d.%d", n/250%250, n%250+1)}
	}
	c.parts[kindNIC][p.name] = p
	if c.options.Machines != nil {
		// Both have addresses once what stands behind the machine has one.
		p.address = ""
		if p.public != "" {
			c.parts[kindIP][p.public].address = ""
		}
	}
	disk := m.create.Properties.StorageProfile.Disk.Name
	c.parts[kindDisk][disk] = &part{name: disk, kind: kindDisk, tags: m.tags, created: m.created, vm: m.name}
}

// removePartsLocked deletes the parts of a machine whose option says so, and takes the others off.
func (c *Cloud) removePartsLocked(m *vm) {
	s := &m.create.Properties
	nic := s.NetworkProfile.Configurations[0]
	option := map[string]string{kindNIC: nic.Properties.DeleteOption, kindDisk: s.StorageProfile.Disk.DeleteOption}
	if public := nic.Properties.IPs[0].Properties.Public; public != nil {
		option[kindIP] = public.Properties.DeleteOption
	}
	for kind, all := range c.parts {
		for name, p := range all {
			if p.vm != m.name {
				continue
			}
			if p.vm = ""; option[kind] == "Delete" && !m.keep {
				delete(all, name)
			}
		}
	}
}

// json is a part as Azure writes it.
func (p *part) json() map[string]any {
	kind := map[string]string{kindNIC: "Microsoft.Network/networkInterfaces", kindDisk: "Microsoft.Compute/disks", kindIP: "Microsoft.Network/publicIPAddresses"}[p.kind]
	group := "/subscriptions/" + Subscription + "/resourceGroups/" + Group + "/providers/"
	properties := map[string]any{"provisioningState": "Succeeded"}
	out := map[string]any{"id": group + kind + "/" + p.name, "name": p.name, "type": kind, "location": Location, "tags": p.tags, "properties": properties}
	vmID := group + "Microsoft.Compute/virtualMachines/" + strings.ToUpper(p.vm)
	switch p.kind {
	case kindNIC:
		ip := map[string]any{"privateIPAddress": p.address, "primary": true}
		if p.public != "" {
			ip["publicIPAddress"] = map[string]any{"id": group + "Microsoft.Network/publicIPAddresses/" + strings.ToUpper(p.public)}
		}
		properties["ipConfigurations"] = []any{map[string]any{"name": "main", "properties": ip}}
		if p.vm != "" {
			properties["virtualMachine"] = map[string]any{"id": vmID}
		}
	case kindIP:
		properties["ipAddress"] = p.address
		if p.vm != "" {
			properties["ipConfiguration"] = map[string]any{"id": group + "x"}
		}
	case kindDisk:
		properties["timeCreated"] = p.created.UTC().Format(time.RFC3339Nano)
		properties["diskState"] = "Unattached"
		if p.vm != "" {
			properties["diskState"], out["managedBy"] = "Attached", vmID
		}
	}
	return out
}

func (c *Cloud) lister(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		names := []string{}
		for name := range c.parts[kind] {
			names = append(names, name)
		}
		slices.Sort(names)
		all := make([]any, len(names))
		for i, name := range names {
			all[i] = c.parts[kind][name].json()
		}
		c.mu.Unlock()
		c.page(w, r, all)
	}
}

func (c *Cloud) getter(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p := c.parts[kind][r.PathValue("name")]; p != nil {
			standin.JSON(w, http.StatusOK, p.json())
			return
		}
		refuse(w, http.StatusNotFound, "ResourceNotFound", "not found")
	}
}

func (c *Cloud) deleter(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		p := c.parts[kind][r.PathValue("name")]
		switch {
		case p == nil:
			w.WriteHeader(http.StatusNoContent)
		case p.vm != "":
			refuse(w, http.StatusBadRequest, "OperationNotAllowed", "It is attached.")
		default:
			delete(c.parts[kind], p.name)
			w.WriteHeader(http.StatusOK)
		}
	}
}
