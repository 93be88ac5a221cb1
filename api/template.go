package api

import "reflect"

// Template is what jobs and environments have in common: the program that runs in each member or
// runner, what is around it, and which nodes may run it. A field that is added here can be written
// in both kinds of files, is checked in Validate of JobSpec, and reaches the agents of nodes.
//
// A default that differs between the two stands in the text of the field. A zero tag says what a
// written 0 would mean; readers of files refuse it.
type Template struct {
	Priority *int `json:"priority,omitempty" minimum:"0" maximum:"100" doc:"0 to 100, higher first. Default: 50. Of an environment: the priority of runners that claims wait for and of stock up to the minimum; stock above it has 0."`

	Command    []string `json:"command,omitempty" doc:"The program and its arguments, passed as they are: no shell in between. With an image: the arguments of its entrypoint, instead of its own; may be left out. Of an environment: what runs beside the executions; when it ends, so does the runner. Default of an environment: sleep infinity, so that an image without sleep needs a command."`
	Image      string   `json:"image,omitempty" doc:"Container image, as python:3.13, ghcr.io/team/name@sha256:…, oci:/directory or docker-archive:/file.tar (paths on the node). Empty: a process on the node's own file system, for code that is trusted."`
	Isolation  string   `json:"isolation,omitempty" doc:"With an image: the weakest isolation allowed: container, container-userns, or the name of a runtime with its own kind, as runsc. It waits for a node that offers it. Default: the strictest that its node offers."`
	Runtime    string   `json:"runtime,omitempty" doc:"With an image: only on nodes whose containers are made by this program, as crun, runc or runsc. Default: any."`
	Entrypoint []string `json:"entrypoint,omitempty" doc:"Replaces the image's entrypoint and command. A single empty string: none. Default of a job: the image's; of an environment: none."`
	User       string   `json:"user,omitempty" doc:"The user of the command, and of executions that name none: NAME, UID, NAME:GROUP or UID:GID. Empty: as the image says, else root."`
	Hostname   string   `json:"hostname,omitempty" doc:"With an image, and a network of its own: the container's host name, a DNS name of at most 63 characters. Default: the name of the job and the index of the member, as web-0."`
	Network    string   `json:"network,omitempty" enum:"none,bridge,host" doc:"none: only a loopback. bridge: a network of its own with access to the outside, but not to the node or the cloud's metadata address. host: the node's, including the metadata address. Default with an image: bridge; of an environment: none."`
	Egress     []string `json:"egress,omitempty" doc:"With bridge: only these networks can be reached, for example 10.0.0.0/8. Empty: all."`
	Ports      []int    `json:"ports,omitempty" doc:"With bridge: TCP ports that other sandboxes on the node may connect to. muster port reaches any port without it."`
	// Env is added to a clean environment.
	Env     map[string]string `json:"env,omitempty" doc:"Environment variables for the command and for executions."`
	Workdir string            `json:"workdir,omitempty" doc:"Directory in which the command and executions start: an absolute path. Empty: a new directory, with inputs and outputs; in a container that is /workspace, or the image's own if there are neither inputs nor outputs."`
	Volumes []VolumeSpec      `json:"volumes,omitempty" doc:"With an image: directories of the node that its pool allows, and file systems in memory, mounted in the container."`
	// Resources are those of one member or runner.
	Resources ResourcesSpec `json:"resources,omitempty" doc:"What one member or runner needs."`
	Inputs    []InputSpec   `json:"inputs,omitempty" doc:"Files put into the work directory before the command starts."`
	Ready     *ReadySpec    `json:"ready,omitempty" doc:"Readiness command: a runner is warm, or a member of a service or system job can be healthy, only after it has succeeded. Default: ready as soon as the command runs."`
	KillGrace Duration      `json:"kill_grace,omitempty" zero:"10s, or 1s of an environment" doc:"Time between TERM and KILL when an attempt is ended or a runner destroyed. Default: 10s, of an environment 1s; at most 1h; 1ms kills at once."`

	Constraints []ConstraintSpec `json:"constraints,omitempty" doc:"Conditions that a node's attributes must meet."`
	Pool        string           `json:"pool,omitempty" doc:"Only nodes of this pool. Empty: any."`
}

// VolumeSpec is one directory that a container has beside its image: Name or Tmpfs.
type VolumeSpec struct {
	Path     string `json:"path" doc:"Where it is in the container: an absolute path, not in /proc, /sys or /dev."`
	Name     string `json:"name,omitempty" doc:"A volume that a pool's configuration names in volumes. Only nodes of such pools are used."`
	Writable bool   `json:"writable,omitempty" doc:"Of a name: the container may write there. Only nodes whose pool allows it are used. Default: read-only."`
	Tmpfs    Size   `json:"tmpfs,omitempty" doc:"Instead of a name: the size of an empty file system in memory, which counts as memory of the member."`
}

// deepCopy returns a copy of a spec that shares nothing with it. It goes by the types, so that a
// field that is added cannot be forgotten. Specs hold no interfaces, channels or unexported fields.
func deepCopy[T any](spec *T) *T {
	if spec == nil {
		return nil
	}
	out := *spec
	unshare(reflect.ValueOf(&out).Elem())
	return &out
}

// unshare replaces what v shares with the value that it was copied from.
func unshare(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			unshare(v.Field(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			to := reflect.New(v.Type().Elem())
			to.Elem().Set(v.Elem())
			unshare(to.Elem())
			v.Set(to)
		}
	case reflect.Slice:
		if !v.IsNil() {
			to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(to, v)
			for i := range to.Len() {
				unshare(to.Index(i))
			}
			v.Set(to)
		}
	case reflect.Map:
		if !v.IsNil() {
			to := reflect.MakeMapWithSize(v.Type(), v.Len())
			for it := v.MapRange(); it.Next(); {
				value := reflect.New(v.Type().Elem()).Elem()
				value.Set(it.Value())
				unshare(value)
				to.SetMapIndex(it.Key(), value)
			}
			v.Set(to)
		}
	}
}
