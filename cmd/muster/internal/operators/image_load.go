package operators

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// imageLoadCommand makes muster image load.
func imageLoadCommand(a *cli.App) *cobra.Command {
	var l client.ImageLoad
	c := a.ClientCommand("load FILE|-", "Load an image on the server, for jobs without a registry", `From a file, or from stdin with -. The file is a tar as docker save writes it, or of an OCI layout (buildah push NAME oci-archive:FILE); it may be compressed. With --rootfs it is the tar of a root file system.

Jobs then name the image as they would name one of a registry: muster run --image web:1. A name that is loaded means the loaded image on all nodes, and no registry is asked for it; loading the same name again replaces the image for what starts from then on. The names are printed.

  docker save web:1 | muster image load -
  mmdebstrap trixie - | muster image load --rootfs --name debian:trixie -`, cobra.ExactArgs(1), func(ctx context.Context, cl *client.Client, args []string) error {
		if l.Rootfs && l.Name == "" {
			return cli.Usage(errors.New("--rootfs: give the image a name with --name, as --name debian:trixie"))
		}
		return load(ctx, a, cl, args[0], l)
	})
	c.Flags().StringVar(&l.Name, "name", "", "name of the image, instead of that in the file")
	c.Flags().BoolVar(&l.Rootfs, "rootfs", false, "the file is the tar of a root file system; --name is needed")
	c.Flags().StringVar(&l.Platform, "platform", "", "with --rootfs: platform of the image, as linux/arm64 (default: that of the server)")
	return c
}

// load sends a file, shows how far that is, and prints what was loaded.
func load(ctx context.Context, a *cli.App, cl *client.Client, file string, l client.ImageLoad) error {
	in, size, shown, err := openTar(a, file)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	s := &sending{r: in, size: size, since: time.Now(), screen: term.NewScreen(a.Stdout, a.Stderr)}
	list, err := cl.LoadImage(ctx, l, s, size)
	s.screen.SetBar("")
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && s.err != nil:
		return fmt.Errorf("reading %s: %w", shown, s.err)
	case err != nil:
		return fmt.Errorf("loading %s: %w", shown, err)
	case a.JSON:
		return a.PrintJSON(list)
	}
	for i := range list.Images {
		im := &list.Images[i]
		fmt.Fprintf(a.Stdout, "%s %s\n", term.OneLine(im.Name), term.OneLine(im.Digest))
	}
	return nil
}

// openTar opens the file, or stdin. size is -1 if it is not known.
func openTar(a *cli.App, file string) (in io.ReadCloser, size int64, shown string, err error) {
	if file == "-" {
		if f, ok := a.Stdin.(*os.File); ok && term.IsTerminal(f) {
			return nil, 0, "", cli.Usage(errors.New("stdin is a terminal; write `docker save web:1 | muster image load -`, or name a file"))
		}
		return io.NopCloser(a.Stdin), -1, "stdin", nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, 0, "", err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = cli.Usage(fmt.Errorf("%s is a directory; pack an OCI layout with `tar -C %s -c . | muster image load -`", file, file))
	case info.Size() == 0 && info.Mode().IsRegular():
		err = cli.Usage(fmt.Errorf("%s is empty; save the image again", file))
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, "", err
	}
	size = -1
	if info.Mode().IsRegular() {
		size = info.Size()
	}
	return f, size, file, nil
}

// sending is a file on its way, which shows how far it is.
type sending struct {
	r          io.Reader
	sent, size int64
	since      time.Time
	drawn      time.Time
	screen     *term.Screen
	// err is an error of the file, not of the connection.
	err error
}

// Read reads on.
func (s *sending) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sent += int64(n)
	if err != nil && err != io.EOF {
		s.err = err
	}
	if now := time.Now(); err != nil || now.Sub(s.drawn) >= 200*time.Millisecond {
		s.drawn = now
		s.screen.SetBar(s.text(now))
	}
	return n, err
}

func (s *sending) text(now time.Time) string {
	switch {
	case s.size > 0 && s.sent >= s.size:
		return "loading: " + muster.Bytes(s.size).String() + " sent, the server checks and stores it"
	case s.size > 0:
		parts := []string{fmt.Sprintf("loading  %s of %s", muster.Bytes(s.sent), muster.Bytes(s.size)), term.Percent(s.sent, s.size),
			term.Remaining(s.sent, s.size-s.sent, now.Sub(s.since))}
		return strings.TrimSpace(strings.Join(parts, "  "))
	}
	return "loading  " + muster.Bytes(s.sent).String()
}

// listLoaded prints the images that are loaded on the server.
func listLoaded(ctx context.Context, a *cli.App, cl *client.Client) error {
	list, err := cl.LoadedImages(ctx)
	switch {
	case err != nil:
		return err
	case a.JSON:
		return a.PrintJSON(list)
	}
	now := time.Now()
	var rows [][]string
	for i := range list.Images {
		im := &list.Images[i]
		rows = append(rows, []string{im.Name, shortDigest(im.Digest), muster.Bytes(im.Size).String(), strings.Join(im.Platforms, ","),
			term.Ago(&im.Loaded, now) + " ago", term.OrDash(im.UsedBy)})
	}
	if len(rows) > 0 {
		a.PrintTable([]string{"IMAGE", "DIGEST", "SIZE", "PLATFORM", "LOADED", "USED BY"}, rows)
	}
	fmt.Fprintf(a.Stderr, "muster: server: %s\n", loadedSum(list))
	return nil
}

func loadedSum(list *api.LoadedImageList) string {
	sum := fmt.Sprintf("%s, %s", muster.Counted(len(list.Images), "image"), muster.Bytes(list.Used))
	if list.Limit > 0 {
		sum += " of " + muster.Bytes(list.Limit).String()
	}
	return sum
}

// imageRemoveCommand makes muster image remove. All names are tried.
func imageRemoveCommand(a *cli.App) *cobra.Command {
	return a.ClientCommand("remove NAME...", "Remove images from the server", `Jobs that name one ask a registry from then on. An image that a job or an environment uses which has not ended is not removed. Nodes keep what they have of it until they need the space, or until muster image prune.`, cobra.MinimumNArgs(1), func(ctx context.Context, cl *client.Client, names []string) error {
		failed := 0
		for _, name := range names {
			err := cl.RemoveImage(ctx, name)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil:
				continue
			case client.IsNotFound(err):
				err = cli.WithHint(err, "`muster image list --server` shows the images")
			}
			if len(names) == 1 {
				return err
			}
			failed++
			fmt.Fprintf(a.Stderr, "muster: %s\n", term.OneLine(err.Error()))
		}
		if failed > 0 {
			return cli.Failure(fmt.Errorf("%d of %d images were not removed", failed, len(names)))
		}
		return nil
	})
}
