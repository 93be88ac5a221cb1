package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent/destinations"
	"github.com/musterhq/muster/internal/agent/images"
	"github.com/musterhq/muster/internal/agent/images/source"
	"github.com/musterhq/muster/internal/agent/initbin"
	"github.com/musterhq/muster/internal/agent/oci"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// usualImages is where nodes that the server reaches over SSH have their caches of images.
const usualImages = "/var/lib/muster/images"

// imagesFlags are those of all commands about the cache of a machine without an agent.
type imagesFlags struct {
	dir, cache string
	runtime    string
	json       bool
}

// preloadFlags are those of muster-node images preload.
type preloadFlags struct {
	imagesFlags
	outbound       string
	allow          []string
	insecure       []string
	username, file string
	pin            bool
}

func imagesCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "images",
		Short: "Bring container images to a machine before it is a node",
		Long: `These commands work with the cache that the first agent on this machine will have.
They are for machines that become images of machines: no agent may run here.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(preloadCommand(), imagesListCommand(), unpinCommand())
	return c
}

func (f *imagesFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.dir, "images", usualImages, "directory in which agents of this machine have their caches of images: images/ in ssh.dir of the provider")
	c.Flags().StringVar(&f.cache, "image-cache", "20GiB", "how much unpacked images may take")
	c.Flags().StringVar(&f.runtime, "oci-runtime", "", "program that makes containers on the nodes, by name or path (default: crun, else runc)")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON")
}

func preloadCommand() *cobra.Command {
	var f preloadFlags
	c := &cobra.Command{
		Use:   "preload IMAGE...",
		Short: "Pull and unpack images for the first agent on this machine",
		Long: `Pull and unpack images for the first agent on this machine, which then need not be pulled.
A pinned image stays, however much other images need; without --pin the least used ones are
deleted when the cache is full. Run it as root, with the kernel and the container runtime that the
nodes have.`,
		Example: `  muster-node images preload --pin ghcr.io/team/tool:3 python:3.13`,
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.add(c)
	fs := c.Flags()
	fs.BoolVar(&f.pin, "pin", false, "keep these images although nothing uses them")
	fs.StringVar(&f.outbound, "network", "", "file with the proxy and the certificate authorities to pull with (default: the environment variables HTTP_PROXY, HTTPS_PROXY and NO_PROXY)")
	fs.StringSliceVar(&f.allow, "allow-addresses", nil, "addresses and prefixes from which images may come although they are loopback, link-local or cloud metadata addresses")
	fs.StringSliceVar(&f.insecure, "insecure", nil, "registry that may be reached without TLS, as registry.lan:5000; may be repeated")
	fs.StringVar(&f.username, "username", "", "user at the registry of the images, which must then be one")
	fs.StringVar(&f.file, "password-file", "", "file with the password or token of --username; -: standard input")
	return c
}

// open opens the cache that the first agent gets. The caller calls free when it is done with it.
func (f *imagesFlags) open(ctx context.Context, c images.Config) (store *images.Store, free func(), err error) {
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("the cache of images belongs to root: run this as root")
	}
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return nil, nil, err
	}
	limit, err := api.ParseSize(f.cache)
	if err != nil {
		return nil, nil, fmt.Errorf("--image-cache: %w", err)
	}
	shift, err := f.shift(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	cache, free, err := images.Reserve(dir)
	if err != nil {
		return nil, nil, err
	}
	c.Dir, c.Limit, c.Shift = cache, int64(limit), shift
	if store, err = images.New(c); err != nil {
		free()
		return nil, nil, err
	}
	return store, free, nil
}

// shift is by how much an agent on this machine shifts the owners of files in images. It follows from
// what the kernel and the container runtime can do, so it is found out as an agent does it.
func (f *imagesFlags) shift(ctx context.Context, dir string) (int, error) {
	temp, err := os.MkdirTemp("", "muster-preload-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	initPath, err := initbin.Place(filepath.Join(temp, "bin"))
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	rt, err := oci.New(oci.Config{InitPath: initPath, CgroupParent: "muster/preload", Program: f.runtime, IDBase: idBase, Images: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return 0, err
	}
	if err := rt.Check(ctx); err != nil {
		return 0, fmt.Errorf("an agent could not run containers on this machine, so it is not known how it would keep images: %w", err)
	}
	return rt.IDBase(), nil
}

// run brings the images one after the other. One that cannot be had does not keep the others away.
func (f *preloadFlags) run(cmd *cobra.Command, refs []string) error {
	password, err := f.password(cmd.InOrStdin())
	if err != nil {
		return err
	}
	if err := f.oneRegistry(refs); err != nil {
		return err
	}
	if err := useNetwork(f.outbound); err != nil {
		return err
	}
	allowed, err := destinations.Parse(f.allow)
	if err != nil {
		return fmt.Errorf("--allow-addresses: %w", err)
	}
	grant := func(_ context.Context, ref string, _ muster.Namespace) (source.Grant, error) {
		host, _, _ := strings.Cut(ref, "/")
		return source.Grant{Insecure: slices.Contains(f.insecure, host), Username: f.username, Password: password.Reveal()}, nil
	}
	store, free, err := f.open(cmd.Context(), images.Config{Grant: grant, Destinations: allowed, Logger: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))})
	if err != nil {
		return err
	}
	defer free()
	var failed []string
	for _, ref := range refs {
		if err := f.bring(cmd, store, ref); err != nil {
			if cmd.Context().Err() != nil {
				return err
			}
			fmt.Fprintln(cmd.ErrOrStderr(), "muster-node:", err)
			failed = append(failed, ref)
		}
	}
	// A snapshot of this machine may be taken next.
	unix.Sync()
	if err := f.show(cmd.OutOrStdout(), store, refs); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s not preloaded: %s", muster.Counted(len(failed), "image"), strings.Join(failed, ", "))
	}
	return nil
}

// bring pulls an image unless it is here.
func (f *preloadFlags) bring(cmd *cobra.Command, store *images.Store, ref string) error {
	var told time.Time
	// Whoever bakes an image into a machine, with whatever login, gives it to all that will run there.
	im, err := store.Pull(cmd.Context(), ref, wire.Puller{Scope: muster.PublicScope}, func(p images.Progress) {
		if time.Since(told) >= time.Second {
			told = time.Now()
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %d of %d layers, %s of %s\n", ref, p.LayersDone, p.Layers, muster.Bytes(p.Done), muster.Bytes(p.Total))
		}
	})
	if err != nil {
		return err
	}
	defer im.Release()
	// What was pinned stays so: a later call may bring more.
	if f.pin {
		return store.Pin(im.Digest, true)
	}
	return nil
}

// password reads the password of the login; empty without one.
func (f *preloadFlags) password(stdin io.Reader) (muster.Secret, error) {
	none := muster.Secret{}
	switch {
	case f.username == "" && f.file == "":
		return none, nil
	case f.username == "" || f.file == "":
		return none, errors.New("--username and --password-file belong together: give both, or none")
	case f.file == "-":
		return readPassword("standard input", stdin)
	}
	file, err := os.Open(f.file)
	if err != nil {
		return none, fmt.Errorf("--password-file: %w", err)
	}
	defer func() { _ = file.Close() }()
	return readPassword(f.file, file)
}

// mostPassword is how long a password may be, in bytes.
const mostPassword = 64 << 10

func readPassword(name string, r io.Reader) (muster.Secret, error) {
	b, err := io.ReadAll(io.LimitReader(r, mostPassword+1))
	text := strings.TrimRight(string(b), "\r\n")
	switch {
	case err != nil:
		return muster.Secret{}, fmt.Errorf("--password-file %s: %w", name, err)
	case text == "" || len(b) > mostPassword:
		return muster.Secret{}, fmt.Errorf("--password-file %s: it has %d bytes; a password has 1 to %d", name, len(b), mostPassword)
	}
	return muster.NewSecret(text), nil
}

// oneRegistry refuses to send a login to more than one registry.
func (f *preloadFlags) oneRegistry(refs []string) error {
	first := ""
	for _, ref := range refs {
		r, err := source.Parse(ref)
		if err != nil {
			return err
		}
		host, _, _ := strings.Cut(r.Canonical, "/")
		switch {
		case f.username == "" || r.Kind != source.FromRegistry:
		case first == "":
			first = host
		case host != first:
			return fmt.Errorf("--username is of one registry, and the images are of %s and %s: preload those of each by a call of its own", first, host)
		}
	}
	return nil
}

// shownImage is an image as these commands print it.
type shownImage struct {
	Image  string       `json:"image"`
	Digest string       `json:"digest"`
	Layers int          `json:"layers"`
	Size   muster.Bytes `json:"size"`
	Pinned bool         `json:"pinned"`
}

// show prints the images that are in the store, of those in refs; of all if it is nil.
func (f *imagesFlags) show(w io.Writer, store *images.Store, refs []string) error {
	list := []shownImage{}
	add := func(name string, i images.Info) {
		list = append(list, shownImage{name, i.Digest, i.Layers, muster.Bytes(i.Bytes), i.Pinned})
	}
	for _, ref := range refs {
		if i, ok := images.Resolve(store.List(), ref); ok {
			add(ref, i)
		}
	}
	if refs == nil {
		for _, i := range store.List() {
			add(strings.Join(i.Refs, ","), i)
		}
	}
	if f.json {
		used, limit := store.Usage()
		return json.NewEncoder(w).Encode(map[string]any{"images": list, "used": used, "limit": limit})
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "IMAGE\tDIGEST\tLAYERS\tSIZE\tPINNED")
	for _, i := range list {
		fmt.Fprintf(t, "%s\t%.19s\t%d\t%s\t%t\n", cmp.Or(i.Image, "-"), i.Digest, i.Layers, i.Size, i.Pinned)
	}
	return t.Flush()
}

func imagesListCommand() *cobra.Command {
	var f imagesFlags
	c := &cobra.Command{
		Use:   "list",
		Short: "List the images that the first agent on this machine will have",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, free, err := f.open(cmd.Context(), images.Config{})
			if err != nil {
				return err
			}
			defer free()
			return f.show(cmd.OutOrStdout(), store, nil)
		},
	}
	f.add(c)
	return c
}

func unpinCommand() *cobra.Command {
	var f imagesFlags
	c := &cobra.Command{
		Use:   "unpin IMAGE...",
		Short: "Let images go again when their space is needed",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, refs []string) error {
			store, free, err := f.open(cmd.Context(), images.Config{})
			if err != nil {
				return err
			}
			defer free()
			for _, ref := range refs {
				i, ok := images.Resolve(store.List(), ref)
				if !ok {
					return fmt.Errorf("image %s is not on this machine; `muster-node images list` prints those that are", ref)
				}
				if err := store.Pin(i.Digest, false); err != nil {
					return err
				}
			}
			return f.show(cmd.OutOrStdout(), store, refs)
		},
	}
	f.add(c)
	return c
}
