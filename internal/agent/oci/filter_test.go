package oci

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// evaluate runs a filter as the kernel does.
func evaluate(t *testing.T, code []unix.SockFilter, data map[uint32]uint32) uint32 {
	t.Helper()
	a := uint32(0)
	for pc := 0; pc < len(code); pc++ {
		i := code[pc]
		jump := func(yes bool) {
			if yes {
				pc += int(i.Jt)
			} else {
				pc += int(i.Jf)
			}
		}
		switch i.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = data[i.K]
		case unix.BPF_RET | unix.BPF_K:
			return i.K
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			jump(a == i.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			jump(a >= i.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			jump(a > i.K)
		case unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K:
			jump(a&i.K != 0)
		default:
			t.Fatalf("instruction %d has code %#x", pc, i.Code)
		}
	}
	t.Fatal("the filter ends without an answer")
	return 0
}

// TestFilter: both forms of the profile say the same of every call.
func TestFilter(t *testing.T) {
	code := newFilter()
	if code == nil {
		t.Skip("no numbers of system calls for this architecture")
	}
	var profile seccomp
	if err := json.Unmarshal(newSeccomp(runtime.GOARCH), &profile); err != nil {
		t.Fatal(err)
	}
	plain := map[string]bool{}
	for _, name := range profile.Syscalls[0].Names {
		plain[name] = true
	}
	names := map[uint32]string{}
	for name, n := range callNumbers {
		names[n] = name
	}
	ask := func(number uint32, args ...uint32) uint32 {
		data := map[uint32]uint32{atArch: auditArch, atNumber: number}
		for i, v := range args {
			data[low(uint32(i))] = v
		}
		return evaluate(t, code, data)
	}
	for n := range uint32(1024) {
		name := names[n]
		want := refuse(ePERM)
		switch {
		case name == "clone3":
			want = refuse(eNOSYS)
		case name == "clone" || name == "personality" || plain[name]:
			want = unix.SECCOMP_RET_ALLOW // with arguments of zero
		}
		if got := ask(n); got != want {
			t.Errorf("call %d %q: %#x, want %#x", n, name, got, want)
		}
	}
	for _, c := range []struct {
		name string
		args []uint32
		want uint32
	}{
		{"clone", []uint32{unix.CLONE_VM | unix.CLONE_VFORK | uint32(unix.SIGCHLD)}, unix.SECCOMP_RET_ALLOW},
		{"clone", []uint32{unix.CLONE_NEWUSER | uint32(unix.SIGCHLD)}, refuse(ePERM)},
		{"clone", []uint32{unix.CLONE_NEWNS}, refuse(ePERM)},
		{"clone", []uint32{unix.CLONE_NEWCGROUP}, refuse(ePERM)},
		{"socket", []uint32{unix.AF_UNIX, unix.SOCK_STREAM}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint32{unix.AF_INET, unix.SOCK_STREAM}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint32{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, refuse(ePERM)},
		{"socket", []uint32{unix.AF_PACKET, unix.SOCK_RAW}, refuse(ePERM)},
		{"socket", []uint32{unix.AF_VSOCK, unix.SOCK_STREAM}, refuse(ePERM)},
		{"socket", []uint32{unix.AF_ALG, unix.SOCK_SEQPACKET}, refuse(ePERM)},
		{"personality", []uint32{0xffffffff}, unix.SECCOMP_RET_ALLOW},
		{"personality", []uint32{0x0040000}, refuse(ePERM)},
	} {
		if got := ask(callNumbers[c.name], c.args...); got != c.want {
			t.Errorf("%s%v: %#x, want %#x", c.name, c.args, got, c.want)
		}
	}
	if got := evaluate(t, code, map[uint32]uint32{atArch: auditArch + 1}); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: %#x", got)
	}
	if oldCalls > 0 {
		if got := ask(oldCalls + callNumbers["read"]); got != refuse(eNOSYS) {
			t.Errorf("a call of x32: %#x", got)
		}
	}
}

// TestForbidden: what must never get into the profile by an oversight.
func TestForbidden(t *testing.T) {
	var all []string
	for _, group := range allowedCalls {
		all = append(all, strings.Fields(group)...)
	}
	const never = `acct add_key bpf clock_adjtime clock_settime clone clone3 create_module delete_module finit_module fsconfig fsmount fsopen fspick
		init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie mount
		mount_setattr move_mount move_pages migrate_pages nfsservctl open_by_handle_at open_tree perf_event_open pivot_root quotactl quotactl_fd reboot
		request_key setdomainname sethostname setns settimeofday socket swapoff swapon syslog umount2 unshare uselib
		userfaultfd vhangup vm86 vm86old listmount statmount`
	for name := range strings.FieldsSeq(never) {
		for _, allowed := range all {
			if name == allowed {
				t.Errorf("%s is allowed", name)
			}
		}
	}
}
