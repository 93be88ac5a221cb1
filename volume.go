package muster

import "strings"

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
