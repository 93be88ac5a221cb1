package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/client"
)

// localFile is a file on this host that an input names.
type localFile struct {
	path   string
	digest string
	size   int64
}

// DigestInputs puts the digests of the local files that a job's inputs name in place of their
// names, and their permissions where none are given. Relative names are below folder. It returns
// the files, to be uploaded. An error names the input by its index.
func DigestInputs(spec *api.JobSpec, folder string) ([]localFile, error) {
	var files []localFile
	for i := range spec.Inputs {
		in := &spec.Inputs[i]
		// It has an address or a digest already.
		if in.File == "" {
			continue
		}
		path := in.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(folder, path)
		}
		digest, size, mode, err := measure(path)
		if err != nil {
			return nil, fmt.Errorf("inputs[%d]: %w", i, err)
		}
		in.File, in.Digest = "", digest
		// A script stays executable without being told.
		if in.Mode == "" {
			in.Mode = fmt.Sprintf("0%03o", mode.Perm())
		}
		files = append(files, localFile{path, digest, size})
	}
	return files, nil
}

// UploadInputs sends the local files that a job's inputs name to the server, those that it does not
// have, and puts their digests in place of their names. Files are known by their digest, so one
// that many jobs use is sent once.
func UploadInputs(ctx context.Context, cl *client.Client, spec *api.JobSpec, folder string) error {
	files, err := DigestInputs(spec, folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := f.upload(ctx, cl); err != nil {
			return fmt.Errorf("uploading %s: %w", f.path, err)
		}
	}
	return nil
}

// upload sends the file if the server does not have it. The file is opened anew for each attempt.
func (f *localFile) upload(ctx context.Context, cl *client.Client) error {
	has, err := cl.HasUpload(ctx, f.digest)
	if err != nil || has {
		return err
	}
	_, err = cl.Upload(ctx, f.digest, f.size, func() (io.ReadCloser, error) { return os.Open(f.path) })
	return err
}

// measure reads a file for its digest, its size in bytes and its permissions. It reads it once; the
// upload reads it a second time, and the server compares the digest then.
func measure(file string) (digest string, size int64, mode os.FileMode, err error) {
	f, err := os.Open(file)
	if err != nil {
		return "", 0, 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", 0, 0, err
	}
	// A directory has no digest, and a pipe could be read once only.
	if !info.Mode().IsRegular() {
		return "", 0, 0, fmt.Errorf("%s is no plain file; pack a directory first, as with tar", file)
	}
	h := sha256.New()
	if size, err = io.Copy(h, f); err != nil {
		return "", 0, 0, err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), size, info.Mode(), nil
}
