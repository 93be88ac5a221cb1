package devices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/agent/contract"
)

// Of is how many devices of the kind there are.
func (v *Inventory) Of(kind string) int {
	n := 0
	for i := range v.Devices {
		if v.Devices[i].Kind == kind {
			n++
		}
	}
	return n
}

// Give is what a container needs for the devices that it was granted; nil if they need nothing. A
// kind that the node knows nothing of is only counted, as licences are, but for GPUs: a container
// that was granted one and cannot be given it must not run.
func (v *Inventory) Give(granted []muster.DevicePlace) (*contract.Devices, error) {
	out := &contract.Devices{}
	gpus := 0
	for _, a := range granted {
		d := v.find(a)
		switch {
		case d == nil && v.Of(a.Kind) == 0 && a.Kind != KindGPU:
			continue
		case d == nil && v.Of(a.Kind) == 0:
			return nil, fmt.Errorf("no %s was found here that a container can be given: there is no file of CDI for it in /etc/cdi or /var/run/cdi, and no driver of NVIDIA's", a.Kind)
		case d == nil:
			return nil, fmt.Errorf("%s %d was granted, and only %d of them were found here; the offering says more than there are", a.Kind, a.Place, v.Of(a.Kind))
		}
		if a.Kind == KindGPU {
			gpus++
		}
		merge(out, &d.give)
	}
	if gpus > 0 {
		// Inside there are only these, and programs count what they see. A hook of NVIDIA's that is
		// installed beside this would add more: void is its word for nothing.
		out.Env = append(out.Env, "CUDA_VISIBLE_DEVICES="+upTo(gpus), "NVIDIA_VISIBLE_DEVICES=void")
	}
	if len(out.Nodes)+len(out.Mounts)+len(out.Env)+len(out.Hooks) == 0 {
		return nil, nil
	}
	return out, nil
}

func (v *Inventory) find(a muster.DevicePlace) *Device {
	place := a.Place
	for i := range v.Devices {
		if v.Devices[i].Kind != a.Kind {
			continue
		}
		if place == 0 {
			return &v.Devices[i]
		}
		place--
	}
	return nil
}

// merge adds what one device needs. Devices of one vendor share files, which come once.
func merge(out, d *contract.Devices) {
	for _, n := range d.Nodes {
		if !slices.ContainsFunc(out.Nodes, func(o contract.DeviceNode) bool { return o.Path == n.Path }) {
			out.Nodes = append(out.Nodes, n)
		}
	}
	for _, m := range d.Mounts {
		if !slices.ContainsFunc(out.Mounts, func(o contract.DeviceMount) bool { return o.Path == m.Path }) {
			out.Mounts = append(out.Mounts, m)
		}
	}
	for _, e := range d.Env {
		if !slices.Contains(out.Env, e) {
			out.Env = append(out.Env, e)
		}
	}
	for _, h := range d.Hooks {
		same := func(o contract.DeviceHook) bool {
			return o.Kind == h.Kind && o.Path == h.Path && slices.Equal(o.Args, h.Args) && slices.Equal(o.Env, h.Env)
		}
		if !slices.ContainsFunc(out.Hooks, same) {
			out.Hooks = append(out.Hooks, h)
		}
	}
}

func upTo(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	return strings.Join(list, ",")
}

// Attributes are what is known of the GPUs, for constraints and for people: how many, and the model
// and the driver that all of them have.
func (v *Inventory) Attributes() map[string]string {
	out := map[string]string{}
	if n := v.Of(KindGPU); n > 0 {
		out[muster.AttributeGPUs] = strconv.Itoa(n)
	}
	for name, of := range map[string]func(d *Device) string{
		"gpu.model":  func(d *Device) string { return d.Model },
		"gpu.driver": func(d *Device) string { return d.Driver },
	} {
		var all []string
		for i := range v.Devices {
			if d := &v.Devices[i]; d.Kind == KindGPU && !slices.Contains(all, of(d)) {
				all = append(all, of(d))
			}
		}
		if len(all) == 1 && all[0] != "" {
			out[name] = all[0]
		}
	}
	return out
}
