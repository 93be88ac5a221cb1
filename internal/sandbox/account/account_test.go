package account

import (
	"slices"
	"strings"
	"testing"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

var accountsOfTest = Files{
	Passwd: "# people\nroot:x:0:0:root:/root:/bin/sh\nuser:x:1000:1001:A User,,,:/home/user:/bin/sh\nbroken\nodd:x:x:y::\n" +
		"bare:x:77:78:::\nbig:x:4294967295:0::/:\nuser:x:5:5::/no:\n",
	Group: "root:x:0:\nwheel:x:10:root,user\nuser:x:1001:\nsecond:x:1002:other,user\nthird:x:1003:username\nbroken:x\n",
}

func TestWho(t *testing.T) {
	for _, c := range []struct {
		spec     string
		uid, gid uint32
		groups   []uint32
		home     string
	}{
		{"", 0, 0, []uint32{10}, "/root"},
		{"0", 0, 0, []uint32{10}, "/root"},
		{"user", 1000, 1001, []uint32{10, 1002}, "/home/user"},
		{"1000", 1000, 1001, []uint32{10, 1002}, "/home/user"},
		{"user:second", 1000, 1002, nil, "/home/user"},
		{"user:7", 1000, 7, nil, "/home/user"},
		{"1000:root", 1000, 0, nil, "/home/user"},
		{"4321", 4321, 0, nil, "/"},
		{"4321:99", 4321, 99, nil, "/"},
		{":second", 0, 1002, nil, "/root"},
		{"bare", 77, 78, nil, "/"},
	} {
		got, failed := accountsOfTest.Who(c.spec)
		if failed != nil || got.UID != c.uid || got.GID != c.gid || !slices.Equal(got.Groups, c.groups) || got.Home != c.home {
			t.Errorf("%q: %+v, %+v", c.spec, got, failed)
		}
	}
	for spec, says := range map[string]string{
		"nobody": passwdFile, "user:nobody": groupFile, "-1": passwdFile, "4294967295": passwdFile, "odd": passwdFile, "big": passwdFile,
		"broken": passwdFile, "#": passwdFile, "0x10": passwdFile, "user:4294967296": groupFile,
	} {
		got, failed := accountsOfTest.Who(spec)
		if failed == nil || failed.Class != initwire.ClassUser || failed.Reason != initwire.ReasonSpec || !strings.Contains(failed.Message, says) {
			t.Errorf("%q: %+v, %+v", spec, got, failed)
		}
	}
}

func FuzzWho(f *testing.F) {
	f.Add(accountsOfTest.Passwd, accountsOfTest.Group, "user:second")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		who, failed := Files{passwd, group}.Who(spec)
		if (who == nil) == (failed == nil) {
			t.Errorf("%+v, %+v", who, failed)
		}
		if who != nil && (who.UID == 1<<32-1 || who.GID == 1<<32-1 || !strings.HasPrefix(who.Home, "/")) {
			t.Errorf("%+v", who)
		}
	})
}
