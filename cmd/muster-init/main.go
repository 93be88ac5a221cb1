// Command muster-init is the first process of a sandbox: the parent of its
// command. An agent starts it, with descriptors and not with arguments; what it
// does is package sandbox, what it speaks is internal/wire/init.
//
// It must never depend on its agent being alive, and must stay small.
//
// The runtime's look at the cgroup's processor limit is off: it reads the whole mount
// table, which makes each start slower the more mounts a host has, for a process that needs one processor.
//
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0
package main

import (
	"os"
	"strconv"

	"github.com/musterhq/muster/internal/sandbox"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "--version" {
		_, _ = os.Stdout.WriteString("muster-init, protocol " + strconv.Itoa(initwire.Protocol) + "\n")
		return
	}
	os.Exit(sandbox.Run())
}
