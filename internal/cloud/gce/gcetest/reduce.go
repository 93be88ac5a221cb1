//go:build ignore

// Reduce writes methods.json: what the stand-in and the driver's tests need of Google's discovery
// document for compute v1. The document lies in the module google.golang.org/api, as
// compute/v1/compute-api.json. Run it with go generate; it needs the module in the module cache.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// methods are those that the driver calls.
var methods = []string{
	"instances.insert", "instances.get", "instances.delete", "instances.aggregatedList", "instances.setLabels",
	"instances.getGuestAttributes", "instances.stop", "instances.start", "instances.suspend", "instances.resume",
	"zoneOperations.get", "zoneOperations.wait", "machineTypes.list", "acceleratorTypes.list", "regions.get", "zones.get", "subnetworks.get",
	"images.get", "images.getFromFamily", "disks.aggregatedList", "disks.get", "disks.delete",
	"addresses.aggregatedList", "addresses.get", "addresses.delete",
}

// schemas are those whose fields are kept. A field of another schema is an object of which nothing is
// known, so the stand-in refuses all that is in it.
var schemas = []string{
	"Instance", "AttachedDisk", "AttachedDiskInitializeParams", "NetworkInterface", "AccessConfig", "Scheduling",
	"Duration", "Metadata", "Tags", "InstancesSetLabelsRequest", "InstanceAggregatedList", "InstancesScopedList", "Operation",
	"GuestAttributes", "GuestAttributesValue", "GuestAttributesEntry", "MachineType", "MachineTypeList", "Region", "Quota",
	"Zone", "Subnetwork", "Image", "Disk", "DiskAggregatedList", "DisksScopedList", "Address", "AddressAggregatedList",
	"AddressesScopedList", "DeprecationStatus", "ErrorInfo", "QuotaExceededInfo", "AcceleratorConfig", "AcceleratorType",
	"AcceleratorTypeList",
}

type object = map[string]any

func main() {
	if err := reduce(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func reduce() error {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}} {{.Path}}@{{.Version}}", "google.golang.org/api").Output()
	if err != nil {
		return err
	}
	at, module, _ := strings.Cut(strings.TrimSpace(string(dir)), " ")
	if at == "" {
		return errors.New("google.golang.org/api is not in the module cache: run go mod download google.golang.org/api")
	}
	b, err := os.ReadFile(filepath.Join(at, "compute/v1/compute-api.json"))
	if err != nil {
		return err
	}
	var doc object
	if err := json.Unmarshal(b, &doc); err != nil {
		return err
	}
	out := object{"source": module + "/compute/v1/compute-api.json", "revision": doc["revision"],
		"parameters": keys(doc["parameters"].(object), parameter)}
	found := object{}
	for _, name := range methods {
		resource, method, _ := strings.Cut(name, ".")
		m := doc["resources"].(object)[resource].(object)["methods"].(object)[method].(object)
		kept := object{"httpMethod": m["httpMethod"], "path": m["path"], "parameters": keys(m["parameters"].(object), parameter)}
		for _, k := range []string{"request", "response"} {
			if r, ok := m[k].(object); ok {
				kept[k] = r["$ref"]
			}
		}
		found[name] = kept
	}
	out["methods"] = found
	keep := map[string]bool{}
	for _, s := range schemas {
		keep[s] = true
	}
	types := object{}
	for _, s := range schemas {
		types[s] = kind(doc["schemas"].(object)[s].(object), keep)
	}
	out["schemas"] = types
	b, err = json.MarshalIndent(out, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile("methods.json", append(b, '\n'), 0o644)
}

func keys(of object, do func(object) object) object {
	out := object{}
	for k, v := range of {
		out[k] = do(v.(object))
	}
	return out
}

// parameter is what is checked of a parameter.
func parameter(p object) object { return some(p, "type", "location", "required", "pattern", "format") }

// kind is what is checked of a value.
func kind(s object, keep map[string]bool) object {
	out := some(s, "type", "format")
	if ref, ok := s["$ref"].(string); ok {
		if keep[ref] {
			out["$ref"] = ref
		} else {
			out["type"] = "object"
		}
	}
	if v, ok := s["items"].(object); ok {
		out["items"] = kind(v, keep)
	}
	if v, ok := s["additionalProperties"].(object); ok {
		out["additionalProperties"] = kind(v, keep)
	}
	if v, ok := s["properties"].(object); ok {
		out["properties"] = keys(v, func(o object) object { return kind(o, keep) })
	}
	if v, ok := s["enum"].([]any); ok && len(v) < 40 {
		out["enum"] = v
	}
	return out
}

func some(of object, names ...string) object {
	out := object{}
	for _, n := range names {
		if v, ok := of[n]; ok {
			out[n] = v
		}
	}
	return out
}
