// Package specfile reads the files that users write, job files and muster.yaml,
// in YAML or JSON, strictly: what is unknown, given twice, of the wrong type or
// out of its limits is refused with file, line, column, the line itself with a
// caret, and the nearest known name.
//
// It must never read a file in part, guess what an unknown field might mean, or
// panic, whatever the bytes; its time and memory are linear in their number. The
// CLI reads job files with it and the server its configuration. The shapes are
// those of package api; a new field there is read here without a change.
package specfile
