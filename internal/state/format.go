package state

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/musterhq/muster"
)

// Format is the version of what is written to the log and its snapshots. A reader refuses what it does not
// know: a field that it skipped would make its state differ from the writer's. So nothing is written before
// every server of the cluster reads it. The gate is Meta.Format: FormatRaised raises it, it never falls, and
// MayWrite refuses facts above it.
type Format int

const (
	// FormatFirst is the format of logs without a FormatRaised.
	FormatFirst Format = 1
	// FormatNewest is the newest format that this version reads and writes.
	FormatNewest Format = 7
	// FormatUsage is the first format with what an attempt used and cost.
	FormatUsage Format = 5
	// FormatHostKey is the first format that can launch instances whose host key the server makes.
	FormatHostKey Format = 5
	// FormatPoolVolumes is the first format with the volumes that a pool is configured with.
	FormatPoolVolumes Format = 6
	// FormatServers is the first format with what is known of the servers of a cluster.
	FormatServers Format = 7
	// FormatImageArch is the first format with the architectures that a job's image is for.
	FormatImageArch Format = 7
	// FormatConfig is the first format with the configuration of the cluster.
	FormatConfig Format = 7
	// FormatStopped is the first format with nodes whose machine is switched off.
	FormatStopped Format = 7
	// FormatFloor is the lowest gate at which the control loops work. A leader raises the gate to it before it
	// starts them. What is written above the floor needs a fallback for a lower gate.
	FormatFloor Format = 4
)

// since has the format of every kind of fact ("state.NodeKept") and row ("row 40"), and of every field
// ("state.NodeGone.UnlessHeld") that came after FormatFirst. Such a field is left out when it is zero. A row has
// it only because of a fact of that format, or because the gate was that high when the row was written: servers
// of an older version apply the same facts and must come to the same state.
var since = map[string]Format{
	"state.FormatRaised":                 2,
	"state.Meta.Format":                  2,
	"state.Meta.FormatBy":                2,
	"state.NodeHealthChanged.Incapable":  2,
	"state.Node.Incapable":               2,
	"state.NodeGone.UnlessHeld":          2,
	"state.Receipt.At":                   2,
	"state.EnvironmentSet.Rollout":       2,
	"api.EnvironmentSpec.MaxTTL":         2,
	"api.EnvironmentSpec.LockUser":       2,
	"api.Template.Hostname":              3,
	"state.NodeGone.IfUnchangedSince":    4,
	"state.ImageLoaded":                  4,
	"state.ImageRemoved":                 4,
	"row 17":                             4,
	"state.AllocUpdate.CPU":              5,
	"state.AllocUpdate.PeakMemory":       5,
	"state.Alloc.CPU":                    5,
	"state.Alloc.PeakMemory":             5,
	"state.Alloc.Cost":                   5,
	"api.Template.Volumes":               5,
	"muster.Offering.Weight":             5,
	"state.NodeLaunching.HostKey":        5,
	"state.NodeAdopted.HostKey":          5,
	"state.NodeRekeyed":                  5,
	"state.Node.HostKey":                 5,
	"state.Pool.Volumes":                 6,
	"state.Pool.VolumesWritable":         6,
	"state.ServerSeen":                   7,
	"state.ServerRemoved":                7,
	"row 18":                             7,
	"row 19":                             7,
	"state.JobSubmitted.Architectures":   7,
	"state.EnvironmentSet.Architectures": 7,
	"state.Run.Architectures":            7,
	"state.PastVersion.Architectures":    7,
	"state.ConfigApplied":                7,
	"state.BlocksChanged":                7,
	"state.InstanceSheltered":            7,
	"state.DemandSeen":                   7,
	"state.RunnersWanted.Demand":         7,
	"state.Environment.Demand":           7,
	"row 30":                             7,
	"row 31":                             7,
	"state.HostTaken":                    7,
	"state.HostTagged":                   7,
	"state.HostReleased":                 7,
	"state.HostsFound":                   7,
	"row 32":                             7,
	"state.NodeStopped":                  7,
	"state.NodeStarting":                 7,
	"state.NodeStarted":                  7,
	"state.Node.Off":                     7,
	"state.Pool.StopMost":                7,
	"state.Pool.StopTime":                7,
	"state.JobRetried":                   7,
	"state.Receipt.Members":              7,
}

// FormatRaised raises the gate. Every server of the cluster reads Format.
type FormatRaised struct {
	Format Format `cbor:"1,keyasint"`
	// By is the version of the server that raised it. Older versions name it as the one to run.
	By string `cbor:"2,keyasint,omitempty"`
}

func (f *FormatRaised) apply(s *State, now muster.Time) (any, error) {
	if f.Format <= s.meta.LogFormat() {
		return nil, nil
	}
	if s.meta.LogFormat() < 2 {
		s.dateReceipts(now)
	}
	s.meta.Format, s.meta.FormatBy = f.Format, f.By
	return nil, nil
}

// LogFormat is the gate: the newest format that may be written.
func (m *Meta) LogFormat() Format { return max(m.Format, FormatFirst) }

// NewerError says that a log or a snapshot needs a newer version than this one.
type NewerError struct {
	// Format is the one that it has; 0: not known.
	Format Format
	// By is a version that reads it; empty: not known.
	By string
}

func (e *NewerError) Error() string {
	by := "a newer version of muster"
	if e.By != "" {
		by = "muster " + e.By + " or a newer version"
	}
	if e.Format == 0 {
		return fmt.Sprintf("a newer version wrote it, and this version reads up to format %d; run %s", FormatNewest, by)
	}
	return fmt.Sprintf("it has format %d, and this version reads up to format %d; run %s", e.Format, FormatNewest, by)
}

// MayWrite refuses a fact that a server of the cluster may not be able to read. FormatRaised may always be written: who proposes
// it has asked every server.
func (s *State) MayWrite(f Fact) error {
	gate := s.Latest().meta.LogFormat()
	if _, raises := f.(*FormatRaised); raises || gate >= FormatNewest {
		return nil
	}
	if n := needOf(f); n.format > gate {
		return muster.Faultf(muster.FaultUnavailable, "%s needs log format %d, and the log has format %d until every server of the cluster reads a newer one; upgrade the servers that are older",
			n.what, n.format, gate)
	}
	return nil
}

// need is the format that something written needs, and the kind or field that needs it.
type need struct {
	format Format
	what   string
}

func (n *need) raise(format Format, what string) {
	if format > n.format {
		n.format, n.what = format, what
	}
}

// needOf is what a fact or a row needs. It walks all of it, and is asked only while the gate is below FormatNewest.
func needOf(v any) need {
	n := need{format: FormatFirst}
	n.walk(reflect.ValueOf(v))
	return n
}

func (n *need) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			n.walk(v.Elem())
		}
	case reflect.Slice, reflect.Array:
		if flat(v.Type().Elem()) {
			return
		}
		for i := range v.Len() {
			n.walk(v.Index(i))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			n.walk(it.Value())
		}
	case reflect.Struct:
		s := sinceOf(v.Type())
		n.raise(s.format, s.name)
		for _, f := range s.fields {
			if x := v.Field(f.index); !isAbsent(x) {
				n.raise(f.format, f.name)
				n.walk(x)
			}
		}
	}
}

// structSince is what since says of a struct and of the fields of it that are written.
type structSince struct {
	name   string
	format Format
	fields []fieldSince
}

type fieldSince struct {
	index  int
	name   string
	format Format
}

// structsSince has the structSince of every type that was asked for. Tags are parsed once for each type: a snapshot
// below FormatNewest walks every row.
var structsSince sync.Map

func sinceOf(t reflect.Type) *structSince {
	if s, ok := structsSince.Load(t); ok {
		return s.(*structSince)
	}
	s := &structSince{name: t.String(), format: since[t.String()]}
	for i := range t.NumField() {
		f := t.Field(i)
		if key, _ := wireKey(f); key == "" {
			continue
		}
		name := s.name + "." + f.Name
		// A field whose values have no fields of their own, of the first format, can raise nothing.
		if since[name] == 0 && flat(f.Type) {
			continue
		}
		s.fields = append(s.fields, fieldSince{i, name, since[name]})
	}
	structsSince.Store(t, s)
	return s
}

// flat reports whether values of a type have no fields.
func flat(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct, reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map, reflect.Interface:
		return false
	}
	return true
}

// isAbsent reports whether a field with omitempty or omitzero is left out.
func isAbsent(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}

// wireKey is the key of a field as it is written, "" if it is not; and whether the field is left out when it is zero.
func wireKey(f reflect.StructField) (key string, optional bool) {
	if !f.IsExported() {
		return "", false
	}
	tag, ok := f.Tag.Lookup("cbor")
	if !ok {
		tag = f.Tag.Get("json")
	}
	key, rest, _ := strings.Cut(tag, ",")
	if key == "-" {
		return "", false
	}
	if key == "" {
		key = f.Name
	}
	return key, strings.Contains(rest, "omitempty") || strings.Contains(rest, "omitzero")
}
