package source

import (
	"path/filepath"
	"strings"
	"testing"
)

func FuzzReference(f *testing.F) {
	for _, s := range []string{"busybox", "python:3.13", "ghcr.io/x/y@sha256:" + strings.Repeat("a", 64), "localhost:5000/a/b:c", "docker.io/library/x",
		"oci:/a/b:c", "docker-archive:/x.tar:repo/a:1", "a@b@c", "[::1]:5000/x", "x:y@sha256:" + strings.Repeat("0", 64), "../x", "a/../b", "oci:/a/../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, given string) {
		r, err := Parse(given)
		if err != nil {
			return
		}
		if r.Kind == FromRegistry && (strings.Contains(r.repo.RepositoryStr(), "..") || r.Digest == nil && r.tag == "" || r.Digest != nil && r.tag != "") {
			t.Errorf("%q → %+v", given, r)
		}
		if r.Kind != FromRegistry && (!filepath.IsAbs(r.Path) || strings.Contains(r.Path, "/../") || strings.Contains(r.Path, ":")) {
			t.Errorf("%q → path %q", given, r.Path)
		}
		// The canonical form means the same.
		back, err := Parse(r.Canonical)
		if err != nil || back.Canonical != r.Canonical || back.Kind != r.Kind || back.Path != r.Path {
			t.Errorf("%q → %q → %q, %v", given, r.Canonical, back.Canonical, err)
		}
	})
}

func TestReferences(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for given, want := range map[string]string{
		"busybox":                              "docker.io/library/busybox:latest",
		"python:3.13":                          "docker.io/library/python:3.13",
		"team/app":                             "docker.io/team/app:latest",
		"docker.io/busybox":                    "docker.io/library/busybox:latest",
		"index.docker.io/library/busybox":      "docker.io/library/busybox:latest",
		"ghcr.io/x/y" + digest:                 "ghcr.io/x/y" + digest,
		"ghcr.io/x/y:tag" + digest:             "ghcr.io/x/y" + digest,
		"localhost/x":                          "localhost/x:latest",
		"localhost:5000/x/y:1":                 "localhost:5000/x/y:1",
		"oci:/a/b":                             "oci:/a/b",
		"oci:/a/b/:v1":                         "oci:/a/b:v1",
		"docker-archive:/a/b.tar":              "docker-archive:/a/b.tar",
		"docker-archive:/a/b.tar:x:1":          "docker-archive:/a/b.tar:docker.io/library/x:1",
		"docker-archive:/a/b.tar:r.io/x":       "docker-archive:/a/b.tar:r.io/x:latest",
		"":                                     "",
		"a b":                                  "",
		"a\nb":                                 "",
		"oci:relative":                         "",
		"oci:/a:":                              "",
		"docker-archive:/a:b" + digest:         "",
		"x/../y":                               "",
		"x//y":                                 "",
		"-x":                                   "",
		"x@sha512:" + strings.Repeat("a", 128): "",
		"x@sha256:abc":                         "",
		"docker://busybox":                     "",
		strings.Repeat("a", 2000):              "",
	} {
		r, err := Parse(given)
		if err != nil && want != "" || err == nil && r.Canonical != want {
			t.Errorf("%.80q → %q, %v; want %q", given, r.Canonical, err, want)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "LOCALHOST.:1": true, "127.0.0.1:80": true, "127.9.9.9": true, "[::1]:5": true,
		"[::ffff:127.0.0.1]:5": true, "a.localhost": true, "0.0.0.0:1": true,
		"10.0.0.1:5000": false, "localhost.evil.com": false, "example.com": false, "127.0.0.1.evil.com": false} {
		if isHere(hostOf(host)) != want {
			t.Errorf("isHere(%q) is not %v", host, want)
		}
	}
}
