package muster

import (
	"maps"
	"slices"
	"strings"
)

// Attributes of nodes for volumes: the names of those that containers there can have, with commas
// between them, and of those that may be written. AttributeVolumes also has VolumeTmpfs.
const (
	AttributeVolumes         = "volumes"
	AttributeVolumesWritable = "volumes.writable"
)

// VolumeTmpfs stands in AttributeVolumes for file systems in memory. An agent that is too old for
// volumes has no such attribute, and so gets no job that asks for one.
const VolumeTmpfs = "tmpfs"

// VolumeNeeds are what a job needs of a node that asks for volumes by these names.
func VolumeNeeds(read, write []string) (needs []Constraint) {
	if len(read) > 0 {
		needs = append(needs, Constraint{Attribute: AttributeVolumes, Op: OpSetContains, Value: strings.Join(read, ",")})
	}
	if len(write) > 0 {
		needs = append(needs, Constraint{Attribute: AttributeVolumesWritable, Op: OpSetContains, Value: strings.Join(write, ",")})
	}
	return needs
}

// VolumeAttributes are the values of AttributeVolumes and of AttributeVolumesWritable of a node that
// has the volumes of these names. The map says which of them may be written. read is never empty: it
// has VolumeTmpfs. The agent says them of itself, and the server of the pool's configuration.
func VolumeAttributes(writable map[string]bool) (read, write string) {
	names, some := []string{VolumeTmpfs}, []string(nil)
	for _, name := range slices.Sorted(maps.Keys(writable)) {
		if names = append(names, name); writable[name] {
			some = append(some, name)
		}
	}
	return strings.Join(names, ","), strings.Join(some, ",")
}
