package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// cpio writes the archive that the kernel unpacks as its first root: form newc.
type cpio struct {
	bytes.Buffer
	inode int
}

func (c *cpio) add(name string, mode uint32, major, minor int, body []byte) {
	c.inode++
	fmt.Fprintf(c, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X", c.inode, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name)+1, 0)
	c.WriteString(name)
	c.WriteByte(0)
	c.pad()
	c.Write(body)
	c.pad()
}

func (c *cpio) pad() {
	for c.Len()%4 != 0 {
		c.WriteByte(0)
	}
}

// writeInitrd makes the first root: busybox, modules, and a script that goes on from the disk.
func writeInitrd(to string, k *kernel) error {
	const dir, file, link, char = 0o40755, 0o100755, 0o120777, 0o20600
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("busybox-static is not installed: %w", err)
	}
	c := &cpio{}
	for _, name := range []string{"bin", "dev", "proc", "sys", "disk", "modules"} {
		c.add(name, dir, 0, 0, nil)
	}
	c.add("dev/console", char, 5, 1, nil)
	c.add("bin/busybox", file, 0, 0, busybox)
	c.add("bin/sh", link, 0, 0, []byte("busybox"))
	c.add("init", file, 0, 0, bootScript)
	var names []string
	for _, path := range k.modules {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		names = append(names, filepath.Base(path))
		c.add("modules/"+filepath.Base(path), file, 0, 0, body)
	}
	c.add("modules/order", file, 0, 0, []byte(strings.Join(names, "\n")+"\n"))
	c.add("TRAILER!!!", 0, 0, 0, nil)
	return os.WriteFile(to, c.Bytes(), 0o600)
}
