// Package version knows which Muster this is. It must never decide anything
// by it. Every command prints it; agents and servers tell each other.
package version

import "runtime/debug"

// release is set by the linker in builds of `make`.
var release string

// String is the release, else the revision that the Go tool recorded, else "devel".
func String() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}
