package oci

import "golang.org/x/sys/unix"

// auditArch is the kernel's name of this architecture; oldCalls: no other one looks the same.
const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	oldCalls  = 0
)
