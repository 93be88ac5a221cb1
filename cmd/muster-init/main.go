// Command muster-init is the first process of a sandbox: the parent of its
// command. An agent starts it, with descriptors and not with arguments; what it
// does is package sandbox, what it speaks is internal/wire/init.
//
// It must never depend on its agent being alive, and must stay small.
//
// One processor is enough for it (the agent sets GOMAXPROCS). So the runtime
// shall not keep the cgroup's limit open and watch it: those descriptors are not ours to have.
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
	if len(os.Args) > 1 && os.Args[1] == initwire.OwnersArg {
		os.Exit(sandbox.OpenOwners(os.Args[2:]))
	}
	os.Exit(sandbox.Run())
}
