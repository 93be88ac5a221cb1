package transfer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
	"github.com/musterhq/muster/cmd/muster/internal/cli"
	"github.com/musterhq/muster/cmd/muster/internal/term"
)

// localFile is a file on this host that an input names.
type localFile struct {
	path   string
	digest string
	size   int64
}

// DigestInputs puts the digests of the local files that a job's inputs name in place of their
// names, and their permissions where none are given. A directory becomes the files in it. Relative
// names are below folder. It returns the files, to be uploaded. An error names the input by its
// index in the job.
func DigestInputs(spec *api.JobSpec, folder string) ([]localFile, error) {
	var files []localFile
	var inputs []api.InputSpec
	for i := range spec.Inputs {
		in := spec.Inputs[i]
		// It has an address or a digest already.
		if in.File == "" {
			inputs = append(inputs, in)
			continue
		}
		if !filepath.IsAbs(in.File) {
			in.File = filepath.Join(folder, in.File)
		}
		list, err := filesOf(in)
		if err == nil && len(inputs)+len(list) > api.MaxListLen {
			err = tooMany(in.File, len(list))
		}
		if err != nil {
			return nil, fmt.Errorf("inputs[%d]: %w", i, err)
		}
		for _, one := range list {
			digest, size, mode, err := measure(one.File)
			if err != nil {
				return nil, fmt.Errorf("inputs[%d]: %w", i, err)
			}
			files = append(files, localFile{one.File, digest, size})
			one.File, one.Digest = "", digest
			// A script stays executable without being told.
			one.Mode = cmp.Or(one.Mode, fmt.Sprintf("0%03o", mode.Perm()))
			inputs = append(inputs, one)
		}
	}
	spec.Inputs = inputs
	return files, nil
}

// filesOf is the input itself, or one input for each file of a directory, by name.
func filesOf(in api.InputSpec) ([]api.InputSpec, error) {
	info, err := os.Stat(in.File)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if path.Clean(in.Path) == "." {
			return nil, fmt.Errorf("%s is a file, and its path is the work directory itself; give it a name there, as %s", in.File, filepath.Base(in.File))
		}
		return []api.InputSpec{in}, nil
	}
	var list []api.InputSpec
	err = filepath.WalkDir(in.File, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		below, err := filepath.Rel(in.File, name)
		if err != nil {
			return err
		}
		list = append(list, api.InputSpec{File: name, Path: path.Join(in.Path, filepath.ToSlash(below)), Mode: in.Mode})
		return nil
	})
	return list, err
}

// tooMany says what to do with a directory that has more files than a job may have.
func tooMany(dir string, files int) error {
	return fmt.Errorf("%s has %d files, and a job takes %d inputs in all; name the directories in it that are needed, or pack it with tar and unpack it in the command", dir, files, api.MaxListLen)
}

// uploaders is how many files are uploaded at once: of small ones each costs a round trip.
const uploaders = 8

// UploadInputs sends the local files that a job's inputs name to the server, those that it does not
// have, and puts their digests in place of their names. Files are known by their digest, so one
// that many jobs use is sent once. Progress is shown on the screen, if there is one with a bar.
func UploadInputs(ctx context.Context, cl *client.Client, spec *api.JobSpec, folder string, screen *term.Screen) error {
	files, err := DigestInputs(spec, folder)
	if err != nil {
		return cli.Usage(err)
	}
	if len(files) == 0 {
		return nil
	}
	// Two inputs may have the same content.
	slices.SortFunc(files, func(a, b localFile) int { return cmp.Compare(a.digest, b.digest) })
	files = slices.CompactFunc(files, func(a, b localFile) bool { return a.digest == b.digest })
	m, total := &moved{screen: screen}, int64(0)
	for _, f := range files {
		total += f.size
	}
	m.begin("uploading "+muster.Counted(len(files), "file"), total)
	if screen != nil {
		defer m.show(ctx)()
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(uploaders)
	for _, f := range files {
		g.Go(func() error {
			if err := f.upload(ctx, cl, m); err != nil {
				return fmt.Errorf("uploading %s: %w", f.path, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// upload sends the file if the server does not have it. The file is opened again for each attempt.
func (f *localFile) upload(ctx context.Context, cl *client.Client, m *moved) error {
	has, err := cl.HasUpload(ctx, f.digest)
	if err != nil {
		return err
	}
	if has {
		m.n.Add(f.size)
		return nil
	}
	_, err = cl.Upload(ctx, f.digest, f.size, func() (io.ReadCloser, error) {
		file, err := os.Open(f.path)
		if err != nil {
			return nil, err
		}
		return &countedFile{m.reader(file), file}, nil
	})
	return err
}

// countedFile is a file whose bytes are counted as they are read.
type countedFile struct {
	io.Reader
	io.Closer
}

// measure reads a file for its digest, its size in bytes and its permissions. It reads it once; the
// upload reads it a second time, and the server compares the digest then.
func measure(file string) (digest string, size int64, mode os.FileMode, err error) {
	// Asked before it is opened: that of a pipe would wait for a writer.
	info, err := os.Stat(file)
	if err != nil {
		return "", 0, 0, err
	}
	if !info.Mode().IsRegular() {
		return "", 0, 0, fmt.Errorf("%s is no plain file, and not a link to one; pack what it is in with tar", file)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", 0, 0, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, 0, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), size, info.Mode(), nil
}
