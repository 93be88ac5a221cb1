package oci

import "golang.org/x/sys/unix"

// auditArch is the kernel's name of this architecture; oldCalls is where those of another one begin that look the same.
const (
	auditArch = unix.AUDIT_ARCH_X86_64
	oldCalls  = 0x40000000
)
