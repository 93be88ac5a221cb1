package specfile

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/musterhq/muster/internal/fields"
)

// unknown fails a field that a type does not have. It says which one may have been meant: one of its
// own, or of what it contains. If none is near, it lists the fields of the type, once in a file.
func (d *decoder) unknown(key *node, t reflect.Type, path string) {
	where := ""
	if path != "" {
		where = " in " + path
	}
	name := key.value
	said := func(format string, args ...any) {
		d.fail(key, "", "unknown field %q%s%s", short(name), where, fmt.Sprintf(format, args...))
	}
	if _, elsewhere := inside(t, name); elsewhere != "" {
		said("; it belongs in %s", elsewhere)
		return
	}
	if isGPU(name) && hasDevices(t) {
		said("; ask for devices, as resources: {devices: [{count: 1}]}")
		return
	}
	if best := fields.Nearest(name, fields.Names(t)); best != "" {
		said("; did you mean %q?", best)
		return
	}
	if best, elsewhere := inside(t, fields.Nearest(name, inner(t))); elsewhere != "" {
		said("; did you mean %q, in %s?", best, elsewhere)
		return
	}
	if d.listed[t] {
		said("")
		return
	}
	if d.listed == nil {
		d.listed = map[reflect.Type]bool{}
	}
	d.listed[t] = true
	said("; known are %s", strings.Join(fields.Names(t), ", "))
}

// isGPU reports whether a field is one by which other systems ask for GPUs.
func isGPU(name string) bool {
	switch strings.ToLower(name) {
	case "gpu", "gpus", "gres", "nvidia.com/gpu":
		return true
	}
	return false
}

// hasDevices reports whether a type, or something in it, has a list of devices.
func hasDevices(t reflect.Type) bool {
	if _, own := fields.Named(t, "devices"); own {
		return true
	}
	_, elsewhere := inside(t, "devices")
	return elsewhere != ""
}

// kubernetesKind is the kind of a Kubernetes manifest; "" if it is none.
func kubernetesKind(n *node) string {
	kind, versioned := "", false
	for i := range n.entries {
		switch n.entries[i].key.value {
		case "apiVersion":
			versioned = true
		case "kind":
			kind = n.entries[i].value.value
		}
	}
	if !versioned {
		return ""
	}
	return kind
}

// inside finds a field by its exact name in the structs that t's fields hold.
func inside(t reflect.Type, name string) (found, in string) {
	for _, f := range fields.Of(t) {
		if f.Type.Kind() != reflect.Struct || name == "" {
			continue
		}
		if _, ok := fields.Named(f.Type, name); ok {
			return name, fields.JSONName(f)
		}
	}
	return "", ""
}

func inner(t reflect.Type) []string {
	var out []string
	for _, f := range fields.Of(t) {
		if f.Type.Kind() == reflect.Struct {
			out = append(out, fields.Names(f.Type)...)
		}
	}
	return out
}
