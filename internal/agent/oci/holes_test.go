package oci

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestHolesOfVersions(t *testing.T) {
	const leaks, races, capabilities = "CVE-2024-21626", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", "CVE-2022-27650"
	for _, c := range []struct{ name, version, packaged, want string }{
		{"crun", "1.8.1", "1.8.1-1+deb12u1", ""},
		{"crun", "1.4.3", "", capabilities},
		{"crun", "1.27", "", ""},
		{"crun", "0.17", "", capabilities},
		{"runc", "1.1.5+ds1", "1.1.5+ds1-1+deb12u1", races},
		{"runc", "1.1.5+ds1", "1.1.5+ds1-1+deb12u12", races},
		{"runc", "1.1.5+ds1", "1.1.5+ds1-1", leaks + " " + races},
		{"runc", "1.1.5+ds1", "", leaks + " " + races},
		{"runc", "1.1.5", "1.1.5-0ubuntu1~22.04.9", leaks + " " + races},
		{"runc", "1.0.0~rc93+ds1", "1.0.0~rc93+ds1-5+deb11u5", races},
		{"runc", "1.1.12", "", races},
		{"runc", "1.2.7", "", races},
		{"runc", "1.2.8", "", ""},
		{"runc", "1.2.10", "", ""},
		{"runc", "1.3.2", "", races},
		{"runc", "1.3.3", "", ""},
		{"runc", "1.4.0-rc.2", "", races},
		{"runc", "1.4.0-rc.3", "", ""},
		{"runc", "1.4.0", "", ""},
		{"runc", "1.5.0", "", ""},
		{"runc", "2.0.0", "", ""},
		{"runc", "a build of my own", "", ""},
		{"runsc", "1.0.0", "", ""},
	} {
		var got []string
		for _, h := range holesOf(c.name, c.version, c.packaged) {
			got = append(got, h.ids)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s %s (%s): %q, want %q", c.name, c.version, c.packaged, got, c.want)
		}
	}
}

// A program with a known hole is told, with the holes and what mends them; a node that shall not have any runs no containers by it.
func TestHolesAreToldOrRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "runc")
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho 'runc version 1.1.4'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	told := (&program{path: path, name: "runc", version: "1.1.4"}).holesOfNode(context.Background())
	if len(told) != 2 || !strings.Contains(told[0], "runc 1.1.4 has known vulnerabilities") || !strings.Contains(told[0], "CVE-2024-21626; install runc 1.1.12") {
		t.Errorf("%q", told)
	}
	r, err := New(Config{InitPath: initPath, CgroupParent: testParent(t), Program: path, RefuseHoles: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "runtime_holes") || !strings.Contains(err.Error(), "CVE-2024-21626") {
		t.Errorf("%v", err)
	}
}
