package hetznertest

import (
	"net/http"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/musterhq/muster/internal/cloud/standin"
)

var (
	locations = []schema.Location{
		{ID: 1, Name: "fsn1", City: "Falkenstein", Country: "DE", NetworkZone: "eu-central"},
		{ID: 2, Name: "nbg1", City: "Nuremberg", Country: "DE", NetworkZone: "eu-central"},
	}
	serverTypes = []schema.ServerType{
		kind(22, "cpx11", "x86", 2, 2, 40, "0.0063"), kind(23, "cpx21", "x86", 3, 4, 80, "0.0113"),
		kind(45, "cax11", "arm", 2, 4, 40, "0.0057"), kind(99, "ccx63", "x86", 48, 192, 960, "0.5520"),
	}
	images   = []schema.Image{image(114690387, "debian-12", "x86"), image(114690389, "debian-12", "arm")}
	networks = []schema.Network{{ID: 4711, Name: "nodes", IPRange: "10.0.0.0/16"}}
)

func kind(id int64, name, arch string, cores int, memory float32, disk int, net string) schema.ServerType {
	t := schema.ServerType{ID: id, Name: name, Cores: cores, Memory: memory, Disk: disk, StorageType: "local", CPUType: "shared", Architecture: arch}
	for _, l := range []string{"fsn1", "nbg1"} {
		t.Prices = append(t.Prices, schema.PricingServerTypePrice{Location: l,
			PriceHourly: schema.Price{Net: net, Gross: "9.99"}, PriceMonthly: schema.Price{Net: "99", Gross: "99"}})
	}
	return t
}

func image(id int64, name, arch string) schema.Image {
	return schema.Image{ID: id, Name: &name, Type: "system", Status: "available", Description: "Debian 12", OSFlavor: "debian", Architecture: arch}
}

func (c *Cloud) listTypes(w http.ResponseWriter, r *http.Request) {
	page(w, r, "server_types", serverTypes)
}
func (c *Cloud) listLocations(w http.ResponseWriter, r *http.Request) {
	page(w, r, "locations", locations)
}

func (c *Cloud) listImages(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page(w, r, "images", slices.DeleteFunc(slices.Clone(images), func(i schema.Image) bool {
		return q.Has("name") && q.Get("name") != *i.Name || q.Has("architecture") && !slices.Contains(q["architecture"], i.Architecture)
	}))
}

func (c *Cloud) listNetworks(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	page(w, r, "networks", slices.DeleteFunc(slices.Clone(networks), func(n schema.Network) bool { return q.Has("name") && q.Get("name") != n.Name }))
}

func (c *Cloud) getNetwork(w http.ResponseWriter, r *http.Request) {
	for _, n := range networks {
		if n.ID == idOf(r) {
			standin.JSON(w, http.StatusOK, schema.NetworkGetResponse{Network: n})
			return
		}
	}
	refused(w, http.StatusNotFound, "not_found", "network not found")
}

func (c *Cloud) listIPs(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	var all []schema.PrimaryIP
	for _, ip := range c.ips {
		if selected(r.URL.Query().Get("label_selector"), ip.Labels) {
			all = append(all, *ip)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(all, func(a, b schema.PrimaryIP) int { return int(a.ID - b.ID) })
	page(w, r, "primary_ips", all)
}

func (c *Cloud) getIP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ip := c.ips[idOf(r)]; ip != nil {
		standin.JSON(w, http.StatusOK, schema.PrimaryIPGetResponse{PrimaryIP: *ip})
		return
	}
	refused(w, http.StatusNotFound, "not_found", "primary IP not found")
}

func (c *Cloud) deleteIP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ip := c.ips[idOf(r)]
	switch {
	case ip == nil:
		refused(w, http.StatusNotFound, "not_found", "primary IP not found")
	case ip.AssigneeID != nil:
		refused(w, http.StatusUnprocessableEntity, "primary_ip_assigned", "primary IP is assigned")
	default:
		delete(c.ips, ip.ID)
		w.WriteHeader(http.StatusNoContent)
	}
}
