// Package faults has no code, only tests: each takes the real programs, does to
// them what goes wrong in life (kill -9, a full disk, a foreign directory, a flood),
// and looks from outside whether what the design promises is true.
//
// It must never reach into a server: what it asserts is what a user could see, by the CLI, the
// HTTP API, the files and the processes. Nobody calls it; `go test ./internal/faults` runs it, with
// -tags soak at full size. Flags: -faults.bin DIR takes programs that are there instead of building
// them, -faults.seed N repeats the random moments of one run.
package faults
