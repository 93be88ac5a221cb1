package oci

import (
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// filter is the profile as instructions for the kernel. crun takes it as it is, which saves 2 to 3 ms in each
// start: the list as words has to be read and compiled each time. What it does must be what newSeccomp says.
type filter struct{ code []unix.SockFilter }

// Places in the kernel's struct seccomp_data, on little-endian machines.
const (
	atNumber = 0
	atArch   = 4
	atArgs   = 16
)

func refuse(errno uint32) uint32 { return unix.SECCOMP_RET_ERRNO | errno }

func (f *filter) add(code uint16, k uint32, yes, no uint8) {
	f.code = append(f.code, unix.SockFilter{Code: code, K: k, Jt: yes, Jf: no})
}

func (f *filter) load(at uint32) { f.add(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at, 0, 0) }

func (f *filter) answer(k uint32) { f.add(unix.BPF_RET|unix.BPF_K, k, 0, 0) }

// is goes on if what is loaded equals k, else skips n instructions.
func (f *filter) is(k uint32, n uint8) { f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, k, 0, n) }

// answerIf answers if what is loaded equals k.
func (f *filter) answerIf(k, answer uint32) {
	f.is(k, 1)
	f.answer(answer)
}

// low is the low half of an argument: what the kernel looks at where it is an int.
func low(arg uint32) uint32 { return atArgs + 8*arg }

// high is the other half.
func high(arg uint32) uint32 { return low(arg) + 4 }

// only answers for one call by its arguments and never goes on behind.
func (f *filter) only(call string, arguments func(*filter)) {
	number, ok := callNumbers[call]
	if !ok {
		return
	}
	var inner filter
	arguments(&inner)
	inner.answer(refuse(ePERM))
	f.is(number, uint8(len(inner.code)))
	f.code = append(f.code, inner.code...)
}

// newFilter is the whole; nil where the numbers are not known.
func newFilter() []unix.SockFilter {
	if len(callNumbers) == 0 {
		return nil
	}
	f := &filter{}
	f.load(atArch)
	f.add(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, auditArch, 1, 0)
	f.answer(unix.SECCOMP_RET_KILL_PROCESS)
	f.load(atNumber)
	if oldCalls > 0 {
		f.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, oldCalls, 0, 1)
		f.answer(refuse(eNOSYS))
	}
	f.answerIf(callNumbers["clone3"], refuse(eNOSYS))
	f.answerIf(callNumbers["io_setup"], refuse(eNOSYS))
	f.only("clone", func(f *filter) {
		f.load(low(0))
		f.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, namespaceFlags, 1, 0)
		f.answer(unix.SECCOMP_RET_ALLOW)
	})
	f.only("socket", func(f *filter) {
		for _, s := range socketsAllowed {
			var inner filter
			if s.common {
				inner.load(low(1))
				inner.add(unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K, uncommonTypes, 0, 1)
				inner.answer(refuse(ePERM))
			}
			if s.protocols == nil {
				inner.answer(unix.SECCOMP_RET_ALLOW)
			} else {
				inner.load(low(2))
			}
			for _, p := range s.protocols {
				inner.answerIf(uint32(p), unix.SECCOMP_RET_ALLOW)
			}
			f.load(low(0))
			f.is(uint32(s.family), uint8(len(inner.code)))
			f.code = append(f.code, inner.code...)
		}
	})
	f.only("socketpair", func(f *filter) {
		f.load(low(0))
		f.answerIf(unixFamily, unix.SECCOMP_RET_ALLOW)
	})
	f.only("personality", func(f *filter) {
		f.load(low(0))
		for _, p := range personalities {
			f.answerIf(uint32(p), unix.SECCOMP_RET_ALLOW)
		}
	})
	f.only("prlimit64", func(f *filter) {
		f.load(low(0))
		f.answerIf(0, unix.SECCOMP_RET_ALLOW)
		f.load(low(2))
		f.is(0, 3)
		f.load(high(2))
		f.answerIf(0, unix.SECCOMP_RET_ALLOW)
	})
	for _, r := range allowedRanges() {
		// They are sorted: what is below this one and came here is in none.
		f.add(unix.BPF_JMP|unix.BPF_JGE|unix.BPF_K, r.first, 1, 0)
		f.answer(refuse(ePERM))
		f.add(unix.BPF_JMP|unix.BPF_JGT|unix.BPF_K, r.last, 1, 0)
		f.answer(unix.SECCOMP_RET_ALLOW)
	}
	f.answer(refuse(ePERM))
	return f.code
}

type numbers struct{ first, last uint32 }

// allowedRanges are the numbers of allowedCalls, sorted, neighbours together.
func allowedRanges() (ranges []numbers) {
	var all []uint32
	for _, group := range allowedCalls {
		for name := range strings.FieldsSeq(group) {
			if n, ok := callNumbers[name]; ok {
				all = append(all, n)
			}
		}
	}
	slices.Sort(all)
	for _, n := range slices.Compact(all) {
		if last := len(ranges) - 1; last >= 0 && ranges[last].last+1 == n {
			ranges[last].last = n
		} else {
			ranges = append(ranges, numbers{n, n})
		}
	}
	return ranges
}

// encode is the filter as crun takes it.
func encode(code []unix.SockFilter) string {
	var b []byte
	for _, i := range code {
		b = binary.LittleEndian.AppendUint16(b, i.Code)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return base64.StdEncoding.EncodeToString(b)
}
