package azuretest

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// skuSize is one size of machines.
type skuSize struct {
	name, family, arch string
	cpus, memory       int
	spot               bool
	zones, barred      []string
	price, spotPrice   float64
	gpus               int
}

var sizes = []skuSize{
	{"Standard_D2s_v5", "standardDSv5Family", "x64", 2, 8, true, []string{"1", "2", "3"}, nil, 0.115, 0.021, 0},
	{"Standard_D4s_v5", "standardDSv5Family", "x64", 4, 16, true, []string{"1", "2", "3"}, []string{"3"}, 0.23, 0.042, 0},
	{"Standard_D2s_v3", "standardDSv3Family", "x64", 2, 8, true, []string{"1", "2", "3"}, nil, 0.12, 0.05, 0},
	{"Standard_D2s_v4", "standardDSv4Family", "x64", 2, 8, true, []string{"1", "2", "3"}, nil, 0.12, 0.05, 0},
	{"Standard_D96s_v5", "standardDSv5Family", "x64", 96, 384, true, []string{"1"}, nil, 5.52, 1, 0},
	{"Standard_D2ps_v5", "standardDPSv5Family", "Arm64", 2, 8, true, []string{"1", "2"}, nil, 0.09, 0.02, 0},
	{"Standard_E2s_v5", "standardESv5Family", "x64", 2, 16, false, []string{"1", "2", "3"}, nil, 0.152, 0.03, 0},
	{"Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "x64", 4, 28, true, []string{"1"}, nil, 0.6, 0.2, 1},
	{"Standard_NC48ads_A100_v4", "StandardNCADSA100v4Family", "x64", 48, 440, true, []string{"1"}, nil, 7.35, 2, 2},
	{"Standard_ND96asr_v4", "Standard NDASv4_A100 Family", "x64", 96, 900, true, []string{"1"}, nil, 27.2, 9, 8},
	{"Standard_NV12ads_A10_v5", "StandardNVADSA10v5Family", "x64", 12, 110, true, []string{"1"}, nil, 0.9, 0.2, 1},
}

func sizeNamed(name string) *skuSize {
	for i := range sizes {
		if sizes[i].name == name {
			return &sizes[i]
		}
	}
	return nil
}

func (c *Cloud) listSKUs(w http.ResponseWriter, r *http.Request) {
	all := []any{map[string]any{"resourceType": "disks", "name": "StandardSSD_LRS"}}
	if r.URL.Query().Get("$filter") != "location eq '"+Location+"'" {
		standin.JSON(w, http.StatusOK, map[string]any{"value": all})
		return
	}
	for i := range sizes {
		all = append(all, sizes[i].json())
	}
	c.page(w, r, all)
}

// json is a size as Azure writes it.
func (s *skuSize) json() map[string]any {
	capabilities := []any{}
	for k, v := range map[string]string{"vCPUs": strconv.Itoa(s.cpus), "MemoryGB": strconv.Itoa(s.memory), "GPUs": strconv.Itoa(s.gpus), "CpuArchitectureType": s.arch,
		"LowPriorityCapable": map[bool]string{true: "True", false: "False"}[s.spot]} {
		capabilities = append(capabilities, map[string]string{"name": k, "value": v})
	}
	out := map[string]any{"resourceType": "virtualMachines", "name": s.name, "family": s.family, "locations": []string{Location},
		"locationInfo": []any{map[string]any{"location": "WestEurope", "zones": s.zones}}, "capabilities": capabilities, "restrictions": []any{}}
	if len(s.barred) > 0 {
		out["restrictions"] = []any{map[string]any{"type": "Zone", "values": []string{Location}, "reasonCode": "NotAvailableForSubscription",
			"restrictionInfo": map[string]any{"locations": []string{Location}, "zones": s.barred}}}
	}
	return out
}

func (c *Cloud) listUsages(w http.ResponseWriter, r *http.Request) {
	var all []any
	seen := map[string]bool{}
	c.mu.Lock()
	add := func(family string) {
		if !seen[family] {
			seen[family] = true
			all = append(all, map[string]any{"unit": "Count", "currentValue": c.usedLocked(family), "limit": c.limit(family), "name": map[string]string{"value": family, "localizedValue": family}})
		}
	}
	add("cores")
	add("lowPriorityCores")
	for i := range sizes {
		add(sizes[i].family)
	}
	c.mu.Unlock()
	c.page(w, r, all)
}

// versionOf is the newest version of an image; empty: there is no such image.
func versionOf(publisher, offer, sku string) string {
	switch publisher + ":" + offer + ":" + sku {
	case "Debian:debian-12:12-gen2", "Debian:debian-12:12-arm64":
		return "0.20261101.1"
	case "Canonical:ubuntu-24_04-lts:server":
		return "24.04.202611010"
	}
	return ""
}

func (c *Cloud) listVersions(w http.ResponseWriter, r *http.Request) {
	v := versionOf(r.PathValue("publisher"), r.PathValue("offer"), r.PathValue("sku"))
	if v == "" {
		refuse(w, http.StatusNotFound, "NotFound", "Artifact: VMImage was not found.")
		return
	}
	standin.JSON(w, http.StatusOK, []any{map[string]any{"name": v, "location": Location}})
}

// getVersion is one version of an image. That it is for ARM is in the name of its SKU.
func (c *Cloud) getVersion(w http.ResponseWriter, r *http.Request) {
	v := versionOf(r.PathValue("publisher"), r.PathValue("offer"), r.PathValue("sku"))
	if v == "" || v != r.PathValue("version") {
		refuse(w, http.StatusNotFound, "NotFound", "Artifact: VMImage was not found.")
		return
	}
	arch := "x64"
	if strings.HasSuffix(r.PathValue("sku"), "-arm64") {
		arch = "Arm64"
	}
	standin.JSON(w, http.StatusOK, map[string]any{"name": v, "location": Location, "properties": map[string]any{"architecture": arch}})
}

func (c *Cloud) getSubnet(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != Subnet {
		refuse(w, http.StatusNotFound, "ResourceNotFound", "The subnet was not found.")
		return
	}
	standin.JSON(w, http.StatusOK, map[string]any{"name": "nodes", "id": Subnet, "properties": map[string]any{"addressPrefix": "10.0.0.0/16"}})
}

// listPrices is the price list. It has rows of Windows and of old kinds of machines as well.
func (c *Cloud) listPrices(w http.ResponseWriter, r *http.Request) {
	var all []any
	add := func(size, name, product string, price float64) {
		all = append(all, map[string]any{"armSkuName": size, "skuName": name, "productName": product, "unitOfMeasure": "1 Hour",
			"retailPrice": price, "type": "Consumption", "currencyCode": "USD", "armRegionName": Location})
	}
	if !strings.Contains(r.URL.Query().Get("$filter"), "'"+Location+"'") {
		standin.JSON(w, http.StatusOK, map[string]any{"Items": []any{}})
		return
	}
	for i := range sizes {
		s := &sizes[i]
		short := strings.TrimPrefix(s.name, "Standard_")
		add(s.name, short, "Virtual Machines Series Windows", s.price*2)
		add(s.name, short, "Virtual Machines Series", s.price)
		add(s.name, short+" Spot", "Virtual Machines Series", s.spotPrice)
		add(s.name, short+" Low Priority", "Virtual Machines Series", s.price/3)
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("$skip"))
	to := min(from+c.options.Page, len(all))
	out := map[string]any{"Items": all[min(from, to):to], "NextPageLink": nil}
	if to < len(all) {
		q := r.URL.Query()
		q.Set("$skip", strconv.Itoa(to))
		out["NextPageLink"] = here(r) + r.URL.Path + "?" + q.Encode()
	}
	standin.JSON(w, http.StatusOK, out)
}
