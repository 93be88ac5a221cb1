package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// kernelPackage is what always depends on the newest of them.
const kernelPackage = "linux-image-cloud-amd64"

// modules the machine needs; what these need is found out. In this order they are loaded.
var modules = []string{
	"virtio_pci", "virtio_blk", "crc32c_generic", "ext4", // the disk
	"loop", "overlay",
	"bridge", "veth", "dummy", "af_packet",
	"nf_tables", "nft_chain_nat", "nft_masq", "nft_ct", "nft_fib_inet", "nft_reject_inet", "nft_log", "nf_conntrack", "nf_conntrack_netlink", "nf_nat",
}

// kernel is one that QEMU starts by itself, with the modules in order of loading.
type kernel struct {
	release string
	image   string
	modules []string
}

// findKernel takes it from the cache, or fetches and unpacks the package.
func findKernel(ctx context.Context, cache string) (*kernel, error) {
	dir := filepath.Join(cache, "kernel")
	if _, err := os.Stat(filepath.Join(dir, "vmlinux")); err != nil {
		if err := fetchKernel(ctx, dir); err != nil {
			return nil, err
		}
	}
	releases, err := os.ReadDir(filepath.Join(dir, "lib/modules"))
	if err != nil || len(releases) != 1 {
		return nil, fmt.Errorf("%s: want the modules of one release, found %d (%v)", dir, len(releases), err)
	}
	k := &kernel{release: releases[0].Name(), image: filepath.Join(dir, "vmlinux")}
	k.modules, err = loadOrder(filepath.Join(dir, "lib/modules", k.release))
	return k, err
}

func fetchKernel(ctx context.Context, dir string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.MkdirAll(part, 0o755); err != nil {
		return err
	}
	out, err := output(ctx, "", "apt-cache", "depends", "--important", kernelPackage)
	if err != nil {
		return err
	}
	_, name, ok := strings.Cut(string(out), "Depends: ")
	if !ok {
		return fmt.Errorf("package %s is not known here: run apt-get update", kernelPackage)
	}
	name, _, _ = strings.Cut(name, "\n")
	if _, err := output(ctx, part, "apt-get", "-q", "-o", "APT::Sandbox::User=", "download", strings.TrimSpace(name)); err != nil {
		return err
	}
	debs, _ := filepath.Glob(filepath.Join(part, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download %s: %d packages came", name, len(debs))
	}
	if _, err := output(ctx, part, "dpkg-deb", "-x", debs[0], "."); err != nil {
		return err
	}
	images, _ := filepath.Glob(filepath.Join(part, "boot/vmlinuz-*"))
	if len(images) != 1 {
		return fmt.Errorf("package %s holds %d kernels", name, len(images))
	}
	if err := extractKernel(ctx, images[0], filepath.Join(part, "vmlinux")); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(part, dir)
}

// extractKernel gets the ELF out of a bzImage: QEMU starts that at once, while the bzImage's own
// unpacking would take longer than all the rest of the boot without hardware help.
func extractKernel(ctx context.Context, from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if len(b) < 0x250 || !bytes.Equal(b[0x202:0x206], []byte("HdrS")) {
		return fmt.Errorf("%s is no bzImage", from)
	}
	// Linux boot protocol: the payload lies behind the set-up sectors.
	at := (int(b[0x1f1])+1)*512 + int(binary.LittleEndian.Uint32(b[0x248:]))
	end := at + int(binary.LittleEndian.Uint32(b[0x24c:]))
	if at < 0 || end > len(b) || at+8 > end {
		return fmt.Errorf("%s: its payload lies outside", from)
	}
	payload := b[at : end-4] // the last four bytes are the unpacked length
	image, err := unpackKernel(ctx, payload)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if _, err := elf.NewFile(bytes.NewReader(image)); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	return os.WriteFile(to, image, 0o644)
}

func unpackKernel(ctx context.Context, payload []byte) ([]byte, error) {
	program := ""
	switch {
	case bytes.HasPrefix(payload, []byte("\x02\x21\x4c\x18")):
		return unpackLZ4(payload)
	case bytes.HasPrefix(payload, []byte("\xfd7zXZ\x00")):
		program = "xz"
	case bytes.HasPrefix(payload, []byte("\x28\xb5\x2f\xfd")):
		program = "zstd"
	case bytes.HasPrefix(payload, []byte("\x1f\x8b")):
		program = "gzip"
	default:
		return nil, fmt.Errorf("its payload is packed in an unknown way (% x)", payload[:6])
	}
	cmd := exec.CommandContext(ctx, program, "-dc")
	cmd.Stdin, cmd.WaitDelay = bytes.NewReader(payload), time.Second
	image, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	return image, nil
}

// loadOrder is the files of all modules needed, each behind those that it depends on.
func loadOrder(dir string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(p), ".ko"); ok && err == nil {
			files[strings.ReplaceAll(name, "-", "_")] = p
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var order []string
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		file := files[name]
		if done[name] || file == "" {
			return nil // built in
		}
		done[name] = true
		depends, err := dependsOn(file)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		order = append(order, file)
		return nil
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// dependsOn reads what a module says about itself.
func dependsOn(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s: no .modinfo", file)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, line := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// output runs a program; its last words are in the error.
func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.WaitDelay = dir, 5*time.Second
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}
