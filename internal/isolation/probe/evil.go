package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/musterhq/muster/internal/sandbox"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

// Evil is the variable in the command's environment that says what an init which has been taken over does.
const evil = "PROBE_EVIL"

// beInit is process 1 of a sandbox. Unless the start says otherwise it is an init like the real one.
func beInit() {
	start, ok := peekStart()
	if !ok {
		os.Exit(sandbox.Run())
	}
	e := &evilInit{start: start, env: map[string]string{}}
	for _, kv := range start.Env {
		name, value, _ := strings.Cut(kv, "=")
		e.env[name] = value
	}
	// What the other attempts read from their environment.
	for name, value := range e.env {
		_ = os.Setenv(name, value)
	}
	e.be(e.env[evil])
}

// peekStart reads the start without taking it; ok if it makes us evil.
func peekStart() (*initwire.Start, bool) {
	b := make([]byte, 1<<20)
	for {
		n, _, err := unix.Recvfrom(initwire.FDControl, b, unix.MSG_PEEK)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return nil, false
		}
		kind, fields, err := initwire.ReadFrame(bytes.NewReader(b[:n]), len(b))
		if err != nil {
			time.Sleep(time.Millisecond) // the rest is on its way
			continue
		}
		start, err := initwire.ParseStart(fields)
		if kind != initwire.KindStart || err != nil {
			return nil, false
		}
		return start, bytes.Contains(fields, []byte(evil+"="))
	}
}

// evilInit is one.
type evilInit struct {
	start *initwire.Start
	env   map[string]string
}

func (e *evilInit) be(what string) {
	deeds := map[string]func(){
		"says nothing":         sleepForEver,
		"is gone at once":      func() {},
		"answers a huge frame": func() { e.raw(append(binary.BigEndian.AppendUint32(nil, math.MaxUint32), make([]byte, 1<<20)...)) },
		"answers garbage":      func() { e.raw(bytes.Repeat([]byte{0, 0, 0, 9, 128, 1, 255, 255, 255}, 1000)) },
		"lies about the result": func() {
			e.started(time.Now().UnixNano())
			e.result(&initwire.Result{Exit: -1 << 40, Signal: 1 << 30, Started: math.MinInt64, Ended: math.MaxInt64, CPU: -5, Memory: math.MaxInt64, Lost: -7, Leftovers: true})
		},
		"lies about times":      func() { e.started(math.MaxInt64); e.result(&initwire.Result{Started: math.MaxInt64, Ended: 1}) },
		"claims an old failure": func() { e.failed(initwire.ClassNode) },
		"floods the record":     e.floodRecord,
		"swaps its files":       e.swapFiles,
		"makes many files":      e.manyFiles,
		"lies on the socket":    e.lieOnSocket,
		"is deaf":               func() { e.started(time.Now().UnixNano()); sleepForEver() },
		"uses its descriptors":  e.useDescriptors,
	}
	deed := deeds[what]
	if deed == nil {
		fmt.Fprintln(os.Stderr, "probe: no such deed:", what)
		os.Exit(2)
	}
	deed()
	os.Exit(0)
}

// sleepForEver is not select {}: the Go runtime ends a process that nothing can ever wake.
func sleepForEver() {
	for {
		time.Sleep(time.Hour)
	}
}

func (e *evilInit) raw(b []byte) { _, _ = unix.Write(initwire.FDControl, b) }

// started says that the command runs, though there is none.
func (e *evilInit) started(at int64) {
	s := initwire.Started{Command: initwire.Process{Pid: 2, Start: 1}, At: at}
	e.record(initwire.ProcessLine("command", s.Command, at))
	_ = initwire.WriteFrame(os.NewFile(initwire.FDControl, "control"), initwire.KindStarted, s.Fields())
}

func (e *evilInit) failed(class string) {
	f := &initwire.Failed{Class: class, Reason: "exit", Message: strings.Repeat("\x1b[31m\n", 10_000)}
	_ = initwire.WriteFrame(os.NewFile(initwire.FDControl, "control"), initwire.KindFailed, f.Fields())
}

func (e *evilInit) record(line string)        { _, _ = unix.Write(initwire.FDRecord, []byte(line)) }
func (e *evilInit) result(r *initwire.Result) { e.record(r.Line()) }
func (e *evilInit) place(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", initwire.FDOutput, name)
}
func (e *evilInit) write(name string, b []byte) { _ = os.WriteFile(e.place(name), b, 0o644) }

// floodRecord writes more than anybody should read, and the agent's own words among it.
func (e *evilInit) floodRecord() {
	e.started(time.Now().UnixNano())
	e.record(initwire.ProcessLine("init", initwire.Process{Pid: 2, Start: 1}, 1))
	lie := &initwire.Sandbox{Alloc: "another", Runtime: "process", Cgroups: []string{"/no/such/cgroup/of/probe"}}
	e.record(lie.Line())
	block := bytes.Repeat([]byte("x"), 1<<20)
	for range 32 {
		_, _ = unix.Write(initwire.FDRecord, block)
	}
	e.result(&initwire.Result{Exit: 9})
}

// swapFiles puts other things where the agent looks for files.
func (e *evilInit) swapFiles() {
	e.started(time.Now().UnixNano())
	secret := e.env["PROBE_SECRET"]
	_ = os.Remove(e.place("record"))
	_ = os.Symlink(secret, e.place("record"))
	_ = os.Symlink(secret, e.place("stdout.0"))
	_ = os.Symlink("/proc/self/environ", e.place("stdout.1"))
	_ = unix.Mkfifo(e.place("stderr.0"), 0o666)
	_ = os.Mkdir(e.place("stderr.1"), 0o755)
	_ = os.Mkdir(e.place("stdout.2"), 0o755)
	e.write("stdout.9223372036854775807", []byte("beyond"))
	e.write("stdout.-5", []byte("before"))
	if f, err := os.Create(e.place("stdout.16")); err == nil {
		_ = f.Truncate(1 << 43)
		_ = f.Close()
	}
}

func (e *evilInit) manyFiles() {
	e.started(time.Now().UnixNano())
	for i := range 70_000 {
		fd, err := unix.Openat(initwire.FDOutput, "stdout."+strconv.Itoa(i), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		if err != nil {
			break
		}
		_ = unix.Close(fd)
	}
	e.result(&initwire.Result{Exit: 8})
}

// lieOnSocket answers whatever is asked with bytes without an end.
func (e *evilInit) lieOnSocket() {
	_ = unix.SetNonblock(initwire.FDListener, false)
	e.started(time.Now().UnixNano())
	for {
		fd, _, err := unix.Accept(initwire.FDListener)
		if err != nil {
			return
		}
		go func() {
			b := append(binary.BigEndian.AppendUint32(nil, math.MaxUint32), bytes.Repeat([]byte{byte(initwire.KindState)}, 1<<16)...)
			for {
				if _, err := unix.Write(fd, b); err != nil {
					_ = unix.Close(fd)
					return
				}
			}
		}()
	}
}

// useDescriptors tries to reach the node through what init holds, and prints verdicts as its command's output.
func (e *evilInit) useDescriptors() {
	e.started(time.Now().UnixNano())
	var out bytes.Buffer
	tell := func(name string, v verdict) { fmt.Fprintf(&out, "%s\t%s\t%s\n", name, v.word, v.detail) }
	secret := e.env["PROBE_SECRET"]
	tries := map[string]func() error{}
	for fd := range 16 {
		self := fmt.Sprint("/proc/self/fd/", fd, "/")
		// The directory's parents on the node hold the secret.
		for up := range 8 {
			path := strings.Repeat("../", up) + filepath.Base(secret)
			tries[fmt.Sprint(fd, " up ", up)] = func() error {
				f, err := unix.Openat(fd, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(f) }()
				return readsToken(fmt.Sprint("/proc/self/fd/", f))
			}
			tries[self+path] = func() error { return readsToken(self + path) }
		}
	}
	notThere := []unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.EBADF, unix.ENXIO, unix.EINVAL}
	tell("evil-init-up", each(tries, notThere...))
	tell("evil-init-handles", e.handles())
	tell("evil-init-device", judge(func() error {
		if err := unix.Mknodat(initwire.FDOutput, "device", unix.S_IFBLK|0o666, int(unix.Mkdev(diskMajor(), diskMinor()))); err != nil {
			return err
		}
		return openFor(e.place("device"), unix.O_RDONLY)
	}()))
	tell("evil-init-run", judge(func() error {
		// A program with the rights of its owner, left in the node's file system.
		e.write("program", []byte("#!/bin/sh\n"))
		if err := unix.Fchmodat(initwire.FDOutput, "program", 0o6755, 0); err != nil {
			return err
		}
		var fs unix.Statfs_t
		if err := unix.Fstatfs(initwire.FDOutput, &fs); err != nil {
			return err
		}
		if fs.Flags&unix.ST_NOSUID != 0 && fs.Flags&unix.ST_NOEXEC != 0 {
			return unix.EPERM
		}
		return nil
	}()))
	tell("evil-init-others", each(map[string]func() error{
		"mount":   func() error { return unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "") },
		"unshare": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"setns":   func() error { return unix.Setns(initwire.FDOutput, 0) },
		"trace":   func() error { return unix.PtraceAttach(os.Getpid() + 1_000_000) },
	}, unix.ESRCH, unix.EINVAL))
	e.write("stdout.0", out.Bytes())
	e.result(&initwire.Result{})
}

// handles opens the node's file by the kernel's own name for it, from the one descriptor that is on the same file system.
func (e *evilInit) handles() verdict {
	kind, data, ok := strings.Cut(e.env["PROBE_HANDLE"], ":")
	number, err := strconv.Atoi(kind)
	raw, err2 := hex.DecodeString(data)
	if !ok || err != nil || err2 != nil {
		return absent("no handle")
	}
	_, err = unix.OpenByHandleAt(initwire.FDOutput, unix.NewFileHandle(int32(number), raw), unix.O_RDONLY)
	return judge(err)
}
