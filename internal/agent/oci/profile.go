package oci

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// commandCapabilities are those that the commands of a sandbox may have at most: what a package manager and a server that
// drops its rights need, and nothing that reaches beyond the sandbox.
var commandCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_SETFCAP",
}

// initCapabilities are those of init: what it needs to take the rest away from others. Because they are more than any command
// has, no command can trace init.
var initCapabilities = append(slices.Clone(commandCapabilities), "CAP_SETPCAP")

// capabilityNumbers are the kernel's.
var capabilityNumbers = map[string]int{
	"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_FSETID": 4, "CAP_KILL": 5, "CAP_SETGID": 6,
	"CAP_SETUID": 7, "CAP_SETPCAP": 8, "CAP_NET_BIND_SERVICE": 10, "CAP_SYS_CHROOT": 18, "CAP_SETFCAP": 31,
}

// capabilityBits is a list as one bit each.
func capabilityBits(names []string) (bits uint64) {
	for _, name := range names {
		bits |= 1 << capabilityNumbers[name]
	}
	return bits
}

// maskedPaths are hidden, readonlyPaths cannot be written: files of the kernel that know no namespaces.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/config.gz", "/proc/iomem", "/proc/ioports", "/proc/kallsyms", "/proc/kcore", "/proc/keys",
		"/proc/key-users", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/latency_stats",
		"/proc/modules", "/proc/mtrr", "/proc/pagetypeinfo", "/proc/sched_debug", "/proc/scsi", "/proc/slabinfo",
		"/proc/timer_list", "/proc/timer_stats", "/proc/vmallocinfo",
		// Loop devices tell the paths and ids of other sandboxes.
		"/sys/devices/virtual/block",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/kernel/debug",
		"/sys/kernel/security", "/sys/kernel/tracing", "/sys/module",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// Errno values that the filter answers with.
const (
	ePERM  = 1
	eNOSYS = 38
)

// namespaceFlags are those of clone that make a namespace.
const namespaceFlags = 0x7E020000

// allowedCalls are the system calls that ordinary programs make, by what they are about. What is not here
// is refused: namespaces and mounts, keys, bpf and perf, io_uring, userfaultfd, modules and kexec, the clock, swap, reboot,
// handles of files, moving pages of others, and what only exists for old programs.
var allowedCalls = map[string]string{
	"files": `access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
		fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock
		fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr getxattrat ioctl lchown
		lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat mknod mknodat
		newfstatat open openat openat2 pipe pipe2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink
		readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat splice stat statfs statx
		symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes
		vmsplice write writev name_to_handle_at cachestat`,
	"waiting": `epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
		eventfd2 inotify_add_watch inotify_init inotify_init1 inotify_rm_watch poll ppoll pselect6 select signalfd signalfd4
		timerfd_create timerfd_gettime timerfd_settime`,
	"memory": `brk madvise map_shadow_stack membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync
		munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise process_mrelease remap_file_pages
		get_mempolicy mbind set_mempolicy set_mempolicy_home_node`,
	"processes": `arch_prctl capget capset execve execveat exit exit_group fork getcpu getegid geteuid getgid getgroups getpgid getpgrp
		getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get ioprio_set kcmp kill
		landlock_add_rule landlock_create_ruleset landlock_restrict_self pidfd_getfd pidfd_open pidfd_send_signal prctl
		process_vm_readv process_vm_writev ptrace rseq
		sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
		sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield seccomp
		set_robust_list get_robust_list set_tid_address set_thread_area get_thread_area setfsgid setfsuid setgid setgroups setpgid
		setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sysinfo tgkill times tkill uname vfork
		wait4 waitid waitpid chroot`,
	"signals": `alarm getitimer pause restart_syscall rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
		rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo setitimer sigaltstack`,
	"time": `clock_getres clock_gettime clock_nanosleep gettimeofday nanosleep time timer_create timer_delete timer_getoverrun
		timer_gettime timer_settime`,
	"locks": `futex futex_requeue futex_wait futex_waitv futex_wake`,
	"network": `accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg sendmsg
		sendto setsockopt shutdown`,
	"messages": `mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl semget semop
		semtimedop shmat shmctl shmdt shmget`,
	"randomness": `getrandom`,
}

// socketFamily is a family of sockets that may be made.
type socketFamily struct {
	family uint64
	// protocols that it may have; nil: all.
	protocols []uint64
	// common: only of a common type, see uncommonTypes.
	common bool
}

// unixFamily is the only one of which pairs are made. To ask for a pair of another would have the kernel load that family all the same.
const unixFamily = 1

// socketsAllowed is what may be made. The rest (packets of the wire, the hypervisor's own, the kernel's cryptography,
// old protocols and families) is a way to reach what no rule of a network watches, or rarely tried code.
var socketsAllowed = []socketFamily{
	{family: unixFamily},
	{family: 2, protocols: internetProtocols, common: true},  // IPv4
	{family: 10, protocols: internetProtocols, common: true}, // IPv6
	{family: 16, protocols: []uint64{0, 4}},                  // netlink: routes and addresses, sockets
}

// internetProtocols: the usual one of the type, ICMP, TCP, UDP, ICMPv6, UDP-Lite, MPTCP. Not SCTP, DCCP, L2TP, SMC.
var internetProtocols = []uint64{0, 1, 6, 17, 58, 136, 262}

// uncommonTypes are the bits that a stream, datagrams and raw packets (1 to 3) have not, and the other types have: with no protocol
// named, those are SCTP and DCCP.
const uncommonTypes = 0xc

// personalities that a program may ask for: usual, short path of names, 32-bit names, and the question.
var personalities = []uint64{0x0, 0x8, 0x20000, 0x20008, 0xffffffff}

// whole compares an argument that is an int: the kernel looks at no more than its 32 bits.
func whole(index uint, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Value: 0xffffffff, ValueTwo: value, Op: specs.OpMaskedEqual}
}

// seccompArchitectures by Go's name. A program for another (32 bits on a 64-bit node) is ended at its first call. To let it
// in would be to let everybody in by its door, where one call makes sockets of every kind and its arguments lie in memory,
// where no filter sees them. To answer it with an error would be no kinder: it cannot even exit, and one that insists never ends.
var seccompArchitectures = map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64, "riscv64": specs.ArchRISCV64}

// newSeccomp is the filter for this architecture as it goes into a container's configuration; nil where we have none.
func newSeccomp(arch string) *specs.LinuxSeccomp {
	name, ok := seccompArchitectures[arch]
	if !ok {
		return nil
	}
	const allow, deny = specs.ActAllow, specs.ActErrno
	var plain []string
	for _, group := range allowedCalls {
		plain = append(plain, strings.Fields(group)...)
	}
	slices.Sort(plain)
	forbidden, noSuchCall := uint(ePERM), uint(eNOSYS)
	f := &specs.LinuxSeccomp{
		DefaultAction: deny, DefaultErrnoRet: &forbidden, Architectures: []specs.Arch{name},
		Syscalls: []specs.LinuxSyscall{
			{Names: slices.Compact(plain), Action: allow},
			// Root inside has the uid of init, and could give it limits by which it ends. Everybody may set its own, and look at all.
			{Names: []string{"prlimit64"}, Action: allow, Args: []specs.LinuxSeccompArg{whole(0, 0)}},
			{Names: []string{"prlimit64"}, Action: allow, Args: []specs.LinuxSeccompArg{{Index: 2, Value: 0, Op: specs.OpEqualTo}}},
			{Names: []string{"clone"}, Action: allow, Args: []specs.LinuxSeccompArg{{Index: 0, Value: namespaceFlags, ValueTwo: 0, Op: specs.OpMaskedEqual}}},
			{Names: []string{"socketpair"}, Action: allow, Args: []specs.LinuxSeccompArg{whole(0, unixFamily)}},
			// Its flags lie in memory, where no filter sees them. Told that there is no such call, everybody falls back to clone.
			{Names: []string{"clone3"}, Action: deny, ErrnoRet: &noSuchCall},
			// Its contexts count against one number of the whole machine (fs.aio-max-nr), which a sandbox could use up. Databases
			// that find no such call fall back to other ways.
			{Names: []string{"io_setup"}, Action: deny, ErrnoRet: &noSuchCall},
		},
	}
	for _, s := range socketsAllowed {
		args := []specs.LinuxSeccompArg{whole(0, s.family)}
		if s.common {
			args = append(args, specs.LinuxSeccompArg{Index: 1, Value: uncommonTypes, ValueTwo: 0, Op: specs.OpMaskedEqual})
		}
		if s.protocols == nil {
			f.Syscalls = append(f.Syscalls, specs.LinuxSyscall{Names: []string{"socket"}, Action: allow, Args: args})
		}
		for _, p := range s.protocols {
			f.Syscalls = append(f.Syscalls, specs.LinuxSyscall{Names: []string{"socket"}, Action: allow, Args: append(slices.Clone(args), whole(2, p))})
		}
	}
	for _, p := range personalities {
		f.Syscalls = append(f.Syscalls, specs.LinuxSyscall{Names: []string{"personality"}, Action: allow, Args: []specs.LinuxSeccompArg{whole(0, p)}})
	}
	return f
}
