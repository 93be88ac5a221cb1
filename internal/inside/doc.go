// Package inside is what can be done in the sandbox of an allocation: executions, files, ports, and
// reading its output. It is the service behind every transport: it finds the allocation, reaches
// its init through the link, and turns what init says into what clients are told.
//
// It must never believe init: what comes out of a sandbox is bounded, and harms nobody but that
// sandbox. It decides nothing, and writes nothing to the log. internal/httpapi and
// internal/compat/* use it; internal/server makes it and gives it the link.
package inside
