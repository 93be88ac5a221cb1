package files

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/sandbox/sandboxtest"
	"github.com/musterhq/muster/internal/testwait"
	initwire "github.com/musterhq/muster/internal/wire/init"
)

func (i *inside) tar(paths ...string) ([]byte, error) {
	r, err := initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{Paths: paths})
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	return io.ReadAll(r)
}

func (i *inside) untar(q initwire.TarWrite, b []byte) error {
	return initwire.WriteTar(context.Background(), i.dial(), q, bytes.NewReader(b))
}

// zoo fills a directory with what tars find hard.
func (i *inside) zoo(dir string) {
	t := i.t
	t.Helper()
	for _, n := range []int64{0, 1, 511, 512, 513, 32767, 32768, 100_001} {
		i.make(dir+"/size/"+strconv.FormatInt(n, 10), string(sandboxtest.Written(n, n)))
	}
	long := strings.Repeat("lang", 20)
	for _, name := range []string{
		"ünï cödé", "new\nline", "b\xffytes", "a=b", long + "/" + long + "/x", long + "/" + long + long + long, strings.Repeat("n", 100),
		strings.Repeat("n", 101), strings.Repeat("d", 155) + "/" + strings.Repeat("n", 100), strings.Repeat("d", 156) + "/x", strings.Repeat("0123456789/", 30) + "end",
	} {
		i.make(dir+"/names/"+name, name)
	}
	i.link("size/1", dir+"/link")
	i.link("/nowhere/"+strings.Repeat("far", 50), dir+"/far")
	for _, name := range []string{"/hard", "/names/hard"} {
		if err := os.Link(i.path(dir+"/size/513"), i.path(dir+name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(i.path(dir+"/pipe"), 0o620); err != nil {
		t.Fatal(err)
	}
	i.make(dir+"/locked/file", "x")
	if err := os.Mkdir(i.path(dir+"/empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{
		"locked": 0o555, "locked/file": 0o400, "size/0": os.ModeSetuid | 0o755, "size/1": 0o777, "empty": os.ModeSticky | 0o777, "size/512": 0,
	} {
		if mode == 0 && os.Geteuid() != 0 {
			continue // then nobody here can read it
		}
		if err := os.Chmod(i.path(dir+"/"+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		for name, id := range map[string]int{"size/511": 1000, "link": 2, "empty": 3_000_000, "pipe": 5} {
			if err := os.Lchown(i.path(dir+"/"+name), id, id+1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, name := range []string{"size/1", "size", "names", "empty", "locked", "."} {
		when := time.Unix(int64(1_000_000_000+n), 0)
		if err := os.Chtimes(i.path(dir+"/"+name), when, when); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(i.path(dir+"/locked"), 0o755) })
}

// picture is all that a tar keeps of a tree, as text by name.
func picture(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st syscall.Stat_t
		if err := syscall.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if name == "." {
			return nil
		}
		text := strconv.FormatUint(uint64(st.Mode), 8) + " " + strconv.Itoa(int(st.Uid)) + ":" + strconv.Itoa(int(st.Gid)) + " " + strconv.FormatInt(st.Mtim.Sec, 10)
		switch st.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += " " + strconv.Quote(string(b[:min(len(b), 40)])) + strconv.Itoa(len(b))
			if n := int64(len(b)); strings.HasPrefix(name, "size/") && !bytes.Equal(b, sandboxtest.Written(n, n)) {
				text += " damaged"
			}
			if st.Nlink > 1 {
				if first, ok := inodes[st.Ino]; ok {
					text = "same as " + first
				}
				inodes[st.Ino] = name
			}
		case syscall.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " -> " + target
		}
		all[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func samePictures(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Errorf("%s: %.60q is %.200s, want %.200s", what, name, got[name], want[name])
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %.60q is there, too", what, name)
		}
	}
}

func TestTarRoundTrip(t *testing.T) {
	i := newInside(t)
	i.zoo("zoo")
	want := picture(t, i.path("zoo"))
	for paths, below := range map[string]string{"zoo": "zoo", "zoo/.": ".", i.path("zoo") + "/": "zoo"} {
		b, err := i.tar(paths)
		if err != nil {
			t.Fatal(err)
		}
		to := "to" + strconv.Itoa(len(paths))
		q := initwire.TarWrite{Path: to, Make: true, KeepOwners: os.Geteuid() == 0}
		if err := i.untar(q, b); err != nil {
			t.Fatal(err)
		}
		samePictures(t, paths, picture(t, i.path(to+"/"+below)), want)
		// Once more: what is there is replaced. Directories are only written into.
		if err := os.WriteFile(i.path(to+"/"+below+"/size/100001"), []byte("other"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := i.untar(q, b); err != nil {
			t.Fatal(err)
		}
		got := picture(t, i.path(to+"/"+below))
		for name, text := range want {
			if strings.HasPrefix(text, "40") {
				got[name] = text
			}
		}
		samePictures(t, paths, got, want)
		_ = os.Chmod(i.path(to+"/"+below+"/locked"), 0o755)
	}
}

// TestTarPrograms: what we pack, tar programs unpack, and the other way round.
func TestTarPrograms(t *testing.T) {
	i := newInside(t)
	i.zoo("zoo")
	want := picture(t, i.path("zoo"))
	b, err := i.tar("zoo")
	if err != nil {
		t.Fatal(err)
	}
	run := func(stdin []byte, command ...string) ([]byte, error) {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Skipf("%s is not here", command[0])
		}
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Stdin = i.work, bytes.NewReader(stdin)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil || stderr.Len() > 0 {
			return out, errors.New(stderr.String())
		}
		return out, nil
	}
	for name, command := range map[string][]string{
		"gnu unpacks": {"tar", "-xpf", "-", "--numeric-owner", "-C"}, "busybox unpacks": {"busybox", "tar", "-xpf", "-", "-C"},
	} {
		t.Run(name, func(t *testing.T) {
			to := strings.ReplaceAll(name, " ", "-")
			if err := os.Mkdir(i.path(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := run(b, append(command, to)...); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Chmod(i.path(to+"/zoo/locked"), 0o755) }()
			got := picture(t, i.path(to+"/zoo"))
			expect := maps.Clone(want)
			if name[0] == 'b' {
				// busybox forgets what times directories had, and some of the sets of owners.
				for _, m := range []map[string]string{got, expect} {
					for k, v := range m {
						if f := strings.Fields(v); len(f) > 2 && f[0] != "same" {
							m[k] = f[0] + strings.Join(f[3:], " ")
						}
					}
				}
			}
			samePictures(t, name, got, expect)
		})
	}
	for name, command := range map[string][]string{
		"gnu packs": {"tar", "-cf", "-", "zoo"}, "gnu packs pax": {"tar", "--format=pax", "-cf", "-", "zoo"}, "gnu packs oldgnu": {"tar", "--format=oldgnu", "-cf", "-", "zoo"},
		"busybox packs": {"busybox", "tar", "-cf", "-", "zoo"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := run(nil, command...)
			if err != nil {
				t.Fatal(err)
			}
			to := strings.ReplaceAll(name, " ", "-")
			if err := i.untar(initwire.TarWrite{Path: to, Make: true, KeepOwners: os.Geteuid() == 0}, b); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = os.Chmod(i.path(to+"/zoo/locked"), 0o755) }()
			samePictures(t, name, picture(t, i.path(to+"/zoo")), want)
		})
	}
}

func TestTarOfSome(t *testing.T) {
	i := newInside(t)
	i.make("a/x", "1")
	i.make("b", "2")
	i.link("b", "to-b")
	i.link("a", "to-a")
	names := func(follow bool, paths ...string) string {
		t.Helper()
		r, err := initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{Paths: paths, Follow: follow})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		var all []string
		for tr := tar.NewReader(r); ; {
			h, err := tr.Next()
			if err == io.EOF {
				return strings.Join(all, " ")
			}
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, string(rune(h.Typeflag))+h.Name)
		}
	}
	for _, c := range []struct {
		follow bool
		paths  []string
		want   string
	}{
		{false, []string{"a", "b", i.path("to-b")}, "5a/ 0a/x 0b 2to-b"},
		{true, []string{"to-b", "to-a"}, "0to-b 5to-a/ 0to-a/x"},
		{false, []string{"to-a/"}, "5to-a/ 0to-a/x"},
		{false, []string{"a/."}, "5./ 0./x"},
	} {
		if got := names(c.follow, c.paths...); got != c.want {
			t.Errorf("%v %q: %q, want %q", c.follow, c.paths, got, c.want)
		}
	}
	_, err := initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{Paths: []string{"a", "none"}})
	sandboxtest.WantCode(t, "the second is missing", err, initwire.FileNotFound, "none")
	_, err = initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{})
	sandboxtest.WantCode(t, "of nothing", err, initwire.FileInvalid, "")
	if b, err := i.tar("/proc/sys/kernel/ostype"); err != nil || !bytes.Contains(b, []byte("Linux\n")) {
		t.Errorf("what the kernel makes up: %v", err)
	}
}

// TestEvilTar: nothing is written outside, nothing through a link, and the entry is named.
func TestEvilTar(t *testing.T) {
	device := sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}
	huge := append(sandboxtest.TarOf(t, sandboxtest.File("huge", "x"))[:tarBlock:tarBlock], 'x')
	negative := slices.Clone(huge)
	for at, size := range map[int][]byte{0: {0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 1: {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xf0}} {
		b := [][]byte{huge, negative}[at]
		copy(b[124:], size)
		summed(b)
	}
	pax := func(records string) []byte {
		b := rawHeader('x', int64(len(records)))
		b = append(append(b, records...), make([]byte, -len(records)&(tarBlock-1))...)
		return append(b, sandboxtest.TarOf(t, sandboxtest.File("file", "x"))...)
	}
	for name, c := range map[string]struct {
		tar  []byte
		code string
	}{
		"up":                    {sandboxtest.TarOf(t, sandboxtest.File("../out", "evil")), initwire.FileInvalid},
		"up inside":             {sandboxtest.TarOf(t, sandboxtest.File("a/../../out", "evil")), initwire.FileInvalid},
		"absolute":              {sandboxtest.TarOf(t, sandboxtest.File("/tmp/muster-evil", "evil")), initwire.FileInvalid},
		"through own link":      {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "../outside"), sandboxtest.File("l/evil", "evil")), initwire.FileNotDirectory},
		"through absolute link": {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "/"), sandboxtest.File("l/tmp/muster-evil", "evil")), initwire.FileNotDirectory},
		"deep through link":     {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", ".."), sandboxtest.File("l/outside/deep/evil", "evil")), initwire.FileNotDirectory},
		"directory by link":     {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "../outside"), sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeDir, Name: "l/", Mode: 0o777}}), initwire.FileNotDirectory},
		"through found link":    {sandboxtest.TarOf(t, sandboxtest.File("found/evil", "evil")), initwire.FileNotDirectory},
		"over found link":       {sandboxtest.TarOf(t, sandboxtest.File("found", "mine")), ""},
		"over own link":         {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "../outside/kept"), sandboxtest.File("l", "mine")), ""},
		"hard link outside":     {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeLink, "h", "../outside/kept"), sandboxtest.File("h", "evil")), initwire.FileInvalid},
		"hard link absolute":    {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeLink, "h", "/etc/passwd")), initwire.FileInvalid},
		"hard link by link":     {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "../outside"), sandboxtest.Link(tar.TypeLink, "h", "l/kept"), sandboxtest.File("h", "evil")), initwire.FileInvalid},
		"hard link to a link":   {sandboxtest.TarOf(t, sandboxtest.Link(tar.TypeSymlink, "l", "../outside/kept"), sandboxtest.Link(tar.TypeLink, "h", "l"), sandboxtest.File("h", "mine")), ""},
		"over a hard link":      {sandboxtest.TarOf(t, sandboxtest.File("one", "1"), sandboxtest.Link(tar.TypeLink, "two", "one"), sandboxtest.File("two", "2")), ""},
		"device":                {sandboxtest.TarOf(t, device), initwire.FileInvalid},
		"huge":                  {huge, initwire.FileInvalid},
		"negative":              {negative, initwire.FileInvalid},
		"over a directory":      {sandboxtest.TarOf(t, sandboxtest.File("dir", "x")), initwire.FileIsDirectory},
		"below a file":          {sandboxtest.TarOf(t, sandboxtest.File("kept/x", "x")), initwire.FileNotDirectory},
		"no tar":                {bytes.Repeat([]byte("no tar"), 1000), initwire.FileInvalid},
		"cut":                   {sandboxtest.TarOf(t, sandboxtest.File("cut", strings.Repeat("x", 10_000)))[:5000], initwire.FileInvalid},
		"cut header":            {sandboxtest.TarOf(t, sandboxtest.File("cut", ""))[:300], initwire.FileInvalid},
		"pax garbage":           {pax("garbage"), initwire.FileInvalid},
		"pax length":            {pax("99999 path=x\n"), initwire.FileInvalid},
		"pax overlap":           {pax("5 a=b\n"), initwire.FileInvalid},
		"pax up":                {pax(paxOf("path", "../out")), initwire.FileInvalid},
		"pax size":              {pax(paxOf("size", "-1")), initwire.FileInvalid},
		"pax sparse":            {pax(paxOf("GNU.sparse.major", "1")), initwire.FileInvalid},
		"pax NUL":               {pax(paxOf("path", "a\x00b")), initwire.FileInvalid},
		"pax without an entry":  {pax("")[:tarBlock], initwire.FileInvalid},
		"pax huge":              {rawHeader('x', 1<<30), initwire.FileInvalid},
		"long name":             {pax(paxOf("path", strings.Repeat("x/", 3000))), initwire.FileInvalid},
		"sparse":                {rawHeader('S', 0), initwire.FileInvalid},
		"empty":                 {nil, ""},
		"without an end":        {sandboxtest.TarOf(t, sandboxtest.File("one", "1"))[:1024], ""},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInside(t)
			i.make("outside/kept", "kept")
			i.make("to/kept", "kept")
			i.make("to/dir/x", "x")
			i.link("../outside", "to/found")
			before := picture(t, i.path("outside"))
			err := i.untar(initwire.TarWrite{Path: "to"}, c.tar)
			var wrong *initwire.FileError
			if c.code == "" && err != nil || c.code != "" && (!errors.As(err, &wrong) || wrong.Code != c.code) {
				t.Errorf("error %#v, want code %q", err, c.code)
			}
			samePictures(t, "outside", picture(t, i.path("outside")), before)
			if got := i.names("."); !slices.Equal(got, []string{"outside", "to"}) {
				t.Errorf("beside: %q", got)
			}
			if _, err := os.Lstat("/tmp/muster-evil"); err == nil {
				t.Error("outside by an absolute name")
			}
			for _, name := range i.names("to") {
				if strings.HasPrefix(name, ".muster") || name == "huge" || name == "cut" {
					t.Errorf("left %q", name)
				}
			}
			i.has("to/kept", "kept")
			switch name {
			case "over found link":
				i.has("to/found", "mine")
			case "hard link to a link":
				i.has("to/h", "mine")
			case "over a hard link":
				i.has("to/one", "1")
				i.has("to/two", "2")
			}
		})
	}
}

// rawHeader is a header of a kind that archive/tar does not write by itself.
func rawHeader(kind byte, size int64) []byte {
	b := make([]byte, tarBlock)
	copy(b, "x")
	copy(b[124:], fmt.Sprintf("%011o", size))
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	summed(b)
	return b
}

// summed gives a header its sum.
func summed(b []byte) {
	const at, size = 148, 8
	copy(b[at:], strings.Repeat(" ", size))
	sum := int64(0)
	for _, c := range b[:tarBlock] {
		sum += int64(c)
	}
	copy(b[at:], fmt.Sprintf("%06o\x00", sum))
}

// paxOf is a pax record, whose length has as many digits as that of all but the digits.
func paxOf(key, value string) string {
	n := len(key) + len(value) + len(" =\n")
	n += len(strconv.Itoa(n + 1))
	return strconv.Itoa(n) + " " + key + "=" + value + "\n"
}

// TestUntarBrokenOff: whole files stay, half of one does not.
func TestUntarBrokenOff(t *testing.T) {
	i := newInside(t)
	b := sandboxtest.TarOf(t, sandboxtest.File("one", "1"), sandboxtest.File("two", strings.Repeat("2", 100_000)))
	conn := i.dial()
	if err := initwire.WriteFrame(conn, initwire.KindTarWrite, (&initwire.TarWrite{Path: "."}).Fields()); err != nil {
		t.Fatal(err)
	}
	if err := initwire.WriteFrame(conn, initwire.KindBytes, b[:20_000]); err != nil {
		t.Fatal(err)
	}
	testwait.Within(t, sandboxtest.Patience, "the second file is begun", func() bool { return len(i.names(".")) == 2 })
	_ = conn.Close()
	testwait.Within(t, sandboxtest.Patience, "half of it is gone", func() bool { return len(i.names(".")) == 1 })
	i.has("one", "1")
}

// TestUntarRace: a program that puts links where directories were gets nothing written outside.
func TestUntarRace(t *testing.T) {
	i := newInside(t)
	outside := t.TempDir()
	var members []sandboxtest.Member
	for n := range 50 {
		members = append(members, sandboxtest.File("d"+strconv.Itoa(n%5)+"/e/f"+strconv.Itoa(n), "x"))
	}
	b := sandboxtest.TarOf(t, members...)
	stop := make(chan struct{})
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			dir := i.path("to/d" + strconv.Itoa(n%5))
			_ = os.RemoveAll(i.path("aside"))
			_ = os.Rename(dir, i.path("aside"))
			_ = os.Symlink(outside, dir)
			_ = os.Remove(dir)
		}
	}()
	for range 50 {
		_ = i.untar(initwire.TarWrite{Path: "to", Make: true}, b)
	}
	close(stop)
	<-swapped
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) > 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
}

// perGB reports the CPU time of both ends, which other load on the machine changes less than the
// time on the wall.
func perGB(b *testing.B, size int64) (report func()) {
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.SetBytes(size)
	before := used()
	return func() { b.ReportMetric((used()-before).Seconds()*1e9/float64(size)/float64(b.N), "cpu-s/GB") }
}

func BenchmarkTar(b *testing.B) {
	const files, size = 64, 4 << 20
	i := newInside(b)
	for n := range files {
		i.make("tree/"+strconv.Itoa(n%8)+"/"+strconv.Itoa(n), string(sandboxtest.Written(int64(n), size)))
	}
	packed, err := i.tar("tree")
	if err != nil {
		b.Fatal(err)
	}
	// Beside it, what a tar program needs for the same from a file: only one copy, and no socket.
	b.Run("tar -x", func(b *testing.B) {
		i.make("packed", string(packed))
		b.SetBytes(int64(len(packed)))
		for b.Loop() {
			b.StopTimer()
			must(b, os.RemoveAll(i.path("beside")))
			must(b, os.Mkdir(i.path("beside"), 0o755))
			b.StartTimer()
			if out, err := exec.Command("tar", "-xf", i.path("packed"), "-C", i.path("beside")).CombinedOutput(); err != nil {
				b.Skipf("tar: %v, %s", err, out)
			}
		}
	})
	b.Run("up", func(b *testing.B) {
		defer perGB(b, int64(len(packed)))()
		for b.Loop() {
			b.StopTimer()
			must(b, os.RemoveAll(i.path("to")))
			b.StartTimer()
			if err := i.untar(initwire.TarWrite{Path: "to", Make: true}, packed); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("down", func(b *testing.B) {
		defer perGB(b, int64(len(packed)))()
		for b.Loop() {
			r, err := initwire.ReadTar(context.Background(), i.dial(), initwire.TarRead{Paths: []string{"tree"}})
			if err != nil {
				b.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, r); err != nil || n != int64(len(packed)) {
				b.Fatal(n, err)
			}
			_ = r.Close()
		}
	})
}

// FuzzUntar: whatever comes, unpacking ends, and leaves what is beside alone.
func FuzzUntar(f *testing.F) {
	f.Add(sandboxtest.TarOf(f, sandboxtest.File("a/b", "x"), sandboxtest.Link(tar.TypeSymlink, "l", ".."), sandboxtest.File("l/x", "x"), sandboxtest.Link(tar.TypeLink, "h", "a/b")))
	f.Add(sandboxtest.TarOf(f, sandboxtest.File(strings.Repeat("long/", 60)+"x", "x"), sandboxtest.File("../x", "y")))
	f.Add(sandboxtest.TarOf(f, sandboxtest.Member{Header: tar.Header{Typeflag: tar.TypeReg, Name: "gnu" + strings.Repeat("x", 200), Format: tar.FormatGNU, Uid: 1 << 40}, Content: "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "to"), 0o755); err != nil {
			t.Fatal(err)
		}
		top, _ := syscall.Dup(sandboxtest.OpenDir(t, filepath.Join(dir, "to")))
		u := newUnpacker(bytes.NewReader(b), "to", top, whoever, false)
		_ = u.run()
		u.close()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 {
			t.Errorf("beside: %v, %v", entries, err)
		}
	})
}
