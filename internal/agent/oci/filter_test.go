package oci

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
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

// word is one half of an argument.
func word(args []uint64, i, half int) uint32 {
	if i >= len(args) {
		return 0
	}
	return uint32(args[i] >> (32 * half))
}

// run64 asks the compiled form about a call.
func run64(t *testing.T, code []unix.SockFilter, number uint32, args ...uint64) uint32 {
	t.Helper()
	data := map[uint32]uint32{atArch: auditArch, atNumber: number}
	for i := range 6 {
		data[low(uint32(i))], data[high(uint32(i))] = word(args, i, 0), word(args, i, 1)
	}
	return evaluate(t, code, data)
}

// inWords is the profile as the runtime programs read it.
type inWords specs.LinuxSeccomp

// ask asks the form in words about a call: as the runtime programs have it, the first rule by name whose conditions all hold.
func (p *inWords) ask(t *testing.T, name string, args ...uint64) uint32 {
	t.Helper()
	holds := func(c specs.LinuxSeccompArg) bool {
		var v uint64
		if int(c.Index) < len(args) {
			v = args[c.Index]
		}
		switch c.Op {
		case "SCMP_CMP_EQ":
			return v == c.Value
		case "SCMP_CMP_MASKED_EQ":
			return v&c.Value == c.ValueTwo
		}
		t.Fatalf("rule of %s has the operator %q", name, c.Op)
		return false
	}
	for _, r := range p.Syscalls {
		all := slices.Contains(r.Names, name)
		for _, c := range r.Args {
			all = all && holds(c)
		}
		switch {
		case !all:
		case r.Action == "SCMP_ACT_ALLOW":
			return unix.SECCOMP_RET_ALLOW
		case r.Action == "SCMP_ACT_ERRNO" && r.ErrnoRet != nil:
			return refuse(uint32(*r.ErrnoRet))
		default:
			t.Fatalf("rule of %s has the action %q", name, r.Action)
		}
	}
	return refuse(uint32(*p.DefaultErrnoRet))
}

// TestFilter: both forms of the profile say the same of every call, whatever its arguments.
func TestFilter(t *testing.T) {
	code := newFilter()
	if code == nil {
		t.Skip("no numbers of system calls for this architecture")
	}
	profile := (*inWords)(newSeccomp(runtime.GOARCH))
	names := map[uint32]string{}
	for name, n := range callNumbers {
		names[n] = name
	}
	conditional := map[string]bool{}
	for _, r := range profile.Syscalls {
		for _, name := range r.Names {
			conditional[name] = conditional[name] || len(r.Args) > 0
		}
	}
	edges := []uint64{
		0, 1, 2, 3, 4, 8, 9, 10, 15, 16, 17, 38, 40, 1 << 7, 1 << 16, 0x20000, 0x20008, 0x0040000, 1 << 25, 1 << 26, 1 << 28, 1 << 30, 1 << 31,
		0xffffffff, 1 << 32, 1<<32 | 1, 1<<32 | 16, 1 << 40, 0xffffffff00000000, ^uint64(0),
	}
	asked := 0
	same := func(n uint32, args ...uint64) {
		asked++
		if got, want := run64(t, code, n, args...), profile.ask(t, names[n], args...); got != want {
			t.Errorf("call %d %q %#x: the filter says %#x, the list %#x", n, names[n], args, got, want)
		}
	}
	for n := range uint32(1024) {
		same(n)
		if !conditional[names[n]] {
			same(n, ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0))
			continue
		}
		for _, a := range edges {
			for _, b := range edges {
				for _, c := range edges {
					same(n, a, b, c)
				}
			}
		}
	}
	for _, family := range []uint64{0, unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_TIPC, unix.AF_SMC, 1<<32 | unix.AF_INET} {
		for kind := range uint64(16) {
			for _, flags := range []uint64{0, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, 1 << 32} {
				for protocol := range uint64(300) {
					same(callNumbers["socket"], family, kind|flags, protocol)
				}
			}
		}
	}
	t.Logf("%d questions", asked)
	for _, c := range []struct {
		name string
		args []uint64
		want uint32
	}{
		{"read", nil, unix.SECCOMP_RET_ALLOW},
		{"clone3", nil, refuse(eNOSYS)},
		{"io_setup", nil, refuse(eNOSYS)},
		{"clone", []uint64{unix.CLONE_VM | unix.CLONE_VFORK | uint64(unix.SIGCHLD)}, unix.SECCOMP_RET_ALLOW},
		{"clone", []uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, refuse(ePERM)},
		{"clone", []uint64{unix.CLONE_NEWNS}, refuse(ePERM)},
		{"clone", []uint64{unix.CLONE_NEWCGROUP}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, refuse(ePERM)},
		{"socket", []uint64{1<<32 | unix.AF_VSOCK, unix.SOCK_STREAM}, refuse(ePERM)}, // the kernel cuts it to 40
		{"socket", []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK, unix.IPPROTO_TCP}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, unix.SECCOMP_RET_ALLOW},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, 1<<32 | unix.IPPROTO_SCTP}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_SEQPACKET}, refuse(ePERM)}, // SCTP without its number
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DCCP | unix.SOCK_CLOEXEC}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_DCCP}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_L2TP}, refuse(ePERM)},
		{"socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, 256}, refuse(ePERM)}, // SMC
		{"socket", []uint64{unix.AF_SMC, unix.SOCK_STREAM}, refuse(ePERM)},
		{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, unix.SECCOMP_RET_ALLOW},
		{"socketpair", []uint64{unix.AF_UNIX, unix.SOCK_SEQPACKET}, unix.SECCOMP_RET_ALLOW},
		{"socketpair", []uint64{unix.AF_TIPC, unix.SOCK_STREAM}, refuse(ePERM)},
		{"socketpair", []uint64{1<<32 | unix.AF_TIPC, unix.SOCK_STREAM}, refuse(ePERM)},
		{"socketpair", []uint64{unix.AF_INET, unix.SOCK_STREAM}, refuse(ePERM)},
		{"personality", []uint64{0xffffffff}, unix.SECCOMP_RET_ALLOW},
		{"personality", []uint64{0x0040000}, refuse(ePERM)},
		{"prlimit64", []uint64{0, unix.RLIMIT_NOFILE, 0x7fff0000}, unix.SECCOMP_RET_ALLOW},
		{"prlimit64", []uint64{1, unix.RLIMIT_NOFILE, 0, 0x7fff0000}, unix.SECCOMP_RET_ALLOW}, // only looks
		{"prlimit64", []uint64{1, unix.RLIMIT_CPU, 0x7fff0000}, refuse(ePERM)},
		{"prlimit64", []uint64{1<<32 | 1, unix.RLIMIT_CPU, 0x7fff0000}, refuse(ePERM)},
		{"prlimit64", []uint64{1, unix.RLIMIT_CPU, 1 << 40}, refuse(ePERM)}, // a pointer whose low half is zero
	} {
		if got := run64(t, code, callNumbers[c.name], c.args...); got != c.want {
			t.Errorf("%s%#x: %#x, want %#x", c.name, c.args, got, c.want)
		}
	}
	if got := evaluate(t, code, map[uint32]uint32{atArch: auditArch + 1}); got != unix.SECCOMP_RET_KILL_PROCESS {
		t.Errorf("another architecture: %#x", got)
	}
	if oldCalls > 0 {
		if got := run64(t, code, oldCalls+callNumbers["read"]); got != refuse(eNOSYS) {
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
		init_module io_setup io_submit io_uring_enter io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie mount
		mount_setattr move_mount move_pages migrate_pages nfsservctl open_by_handle_at open_tree perf_event_open pivot_root prlimit64 quotactl quotactl_fd reboot
		request_key setdomainname sethostname setns settimeofday socket socketpair swapoff swapon syslog umount2 unshare uselib
		userfaultfd vhangup vm86 vm86old listmount statmount`
	for name := range strings.FieldsSeq(never) {
		for _, allowed := range all {
			if name == allowed {
				t.Errorf("%s is allowed", name)
			}
		}
	}
}
