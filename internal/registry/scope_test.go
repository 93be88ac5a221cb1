package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Credentials of an entry that names namespaces are for those, and a host may have several entries.
func TestNamespaces(t *testing.T) {
	s := newStand(t, "bearer")
	web, rest := s.spec(), s.spec()
	web.Namespaces = []string{"web", "shop"}
	rest.Username, rest.Password = "other", muster.NewSecret("wrong")
	ref := s.host + "/team/app:1"

	alone := newRig(t, web)
	for _, ns := range []muster.Namespace{"web", "shop"} {
		if g := alone.Grant(t.Context(), ref, ns); g.Failure != nil || !strings.HasPrefix(g.Authorization, "Bearer token-for-") || g.Namespace != ns || g.Scope == "" {
			t.Errorf("%s: %+v", ns, g)
		}
	}
	// Both have the same credentials, so that was asked for once.
	if n := len(s.asked()); n != 1 || alone.Scope(ref, "web") != alone.Scope(ref, "shop") {
		t.Errorf("asked %d times", n)
	}
	for _, ns := range []muster.Namespace{"ml", ""} {
		g := alone.Grant(t.Context(), ref, ns)
		if g.Failure != nil || g.Authorization != "" || g.Insecure || g.Scope != muster.PublicScope || alone.Known(ref, ns) {
			t.Errorf("%q: %+v", ns, g)
		}
	}
	if n := len(s.asked()); n != 1 {
		t.Errorf("asked %d times", n)
	}

	// Those that no entry names have the one without namespaces; here its password is wrong.
	both := newRig(t, rest, web)
	if g := both.Grant(t.Context(), ref, "web"); g.Failure != nil || g.Authorization == "" {
		t.Errorf("%+v", g)
	}
	if g := both.Grant(t.Context(), ref, "ml"); g.Failure == nil || g.Authorization != "" || !strings.Contains(g.Failure.Message, "user other") {
		t.Errorf("%+v", g)
	}
	if both.Scope(ref, "ml") != both.Scope(ref, "") || both.Scope(ref, "ml") == both.Scope(ref, "web") || both.Scope(ref, "web") != alone.Scope(ref, "web") {
		t.Errorf("%q %q %q", both.Scope(ref, ""), both.Scope(ref, "ml"), both.Scope(ref, "web"))
	}
	// Without namespaces all is as it was.
	if same := newRig(t, rest); same.Scope(ref, "web") != "" || same.Scope("other.example/x", "web") != "" || same.Scope("Not A Name", "web") != "" {
		t.Errorf("%q", same.Scope(ref, "web"))
	}
}

// A scope changes with the entry, and not with its password, which is read from its file whenever it
// is needed.
func TestScopeAndPassword(t *testing.T) {
	s := newStand(t, "bearer")
	spec := s.spec()
	spec.Namespaces = []string{"web"}
	spec.Password, spec.PasswordFile = muster.Secret{}, filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(spec.PasswordFile, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, ref := newRig(t, spec), s.host+"/app"
	before := r.Scope(ref, "web")
	if g := r.Grant(t.Context(), ref, "web"); g.Failure == nil {
		t.Errorf("%+v", g)
	}
	if err := os.WriteFile(spec.PasswordFile, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if g := r.Grant(t.Context(), ref, "web"); g.Failure != nil || g.Authorization == "" || g.Scope != before || strings.Contains(g.Scope, password) {
		t.Errorf("%+v", g)
	}
	for name, change := range map[string]func(*api.RegistrySpec){
		"user":       func(s *api.RegistrySpec) { s.Username = "x" },
		"file":       func(s *api.RegistrySpec) { s.PasswordFile = "/x" },
		"namespaces": func(s *api.RegistrySpec) { s.Namespaces = []string{"web", "x"} },
		"mirror":     func(s *api.RegistrySpec) { s.Mirror = "m.b" },
	} {
		other := spec
		change(&other)
		if got := newRig(t, other).Scope(ref, "web"); got == before || got == "" {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A mirror's credentials are those of its own entry for the namespace.
func TestMirrorOfNamespaces(t *testing.T) {
	origin, mirror := newStand(t, "open"), newStand(t, "bearer")
	mirror.push(t, "hub/team/app:v1")
	from := origin.spec()
	from.Username, from.Password, from.Mirror = "", muster.Secret{}, mirror.host+"/hub"
	to := mirror.spec()
	to.Namespaces = []string{"web"}
	r, ref := newRig(t, from, to), origin.host+"/team/app:v1"
	if g := r.Grant(t.Context(), ref, "web"); g.Failure != nil || g.Pull == "" || g.Authorization == "" {
		t.Errorf("%+v", g)
	}
	if g := r.Grant(t.Context(), ref, "ml"); g.Failure != nil || g.Pull != "" || g.Authorization != "" {
		t.Errorf("%+v", g)
	}
	if web, ml := r.Scope(ref, "web"), r.Scope(ref, "ml"); web == ml || web == "" || ml == "" {
		t.Errorf("%q %q", web, ml)
	}
}
