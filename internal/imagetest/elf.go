package imagetest

import (
	"debug/elf"
	"io"
)

// isDynamic says whether a program needs an interpreter, that is, libraries.
func isDynamic(r io.ReaderAt) bool {
	f, err := elf.NewFile(r)
	if err != nil {
		return false
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return true
		}
	}
	return false
}
