package config

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// whole is a configuration in which every field has a value: text that names its field, and lists of one.
func whole() *api.ServerConfig {
	c := &api.ServerConfig{}
	fillAll(reflect.ValueOf(c).Elem(), "")
	return c
}

func fillAll(v reflect.Value, at string) {
	if s, ok := v.Addr().Interface().(*muster.Secret); ok {
		*s = muster.NewSecret("secret of " + at)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fillAll(v.Field(i), pathOf(at, v.Type().Field(i)))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillAll(v.Elem(), at)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillAll(v.Index(0), at+"[0]")
	case reflect.Map:
		e := reflect.New(v.Type().Elem()).Elem()
		fillAll(e, at+".k")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("k"), e)
	case reflect.String:
		v.SetString("own " + at)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(1.5)
	}
}

// The log has no secret, no path of a file of a server, and nothing that a reload does not change.
func TestClusterPartHasNothingOfServers(t *testing.T) {
	content, err := Content(whole())
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"secret", "_file", "known_hosts", "***", "data_dir", "listen", "own providers[0].env", "own providers[0].command", "credentials"} {
		if strings.Contains(strings.ReplaceAll(content, "user_data_file", "_file"), word) {
			t.Errorf("the cluster's part has %s: %s", word, content)
		}
	}
	var top map[string]any
	if err := json.Unmarshal([]byte(content), &top); err != nil {
		t.Fatal(err)
	}
	for field := range top {
		if needsRestart(field) {
			t.Errorf("%s is the cluster's, and needs a restart of each server", field)
		}
	}
	for i := range reflect.TypeFor[api.ServerConfig]().NumField() {
		f := reflect.TypeFor[api.ServerConfig]().Field(i)
		if name := pathOf("", f); isOwn(f) != needsRestart(name) {
			t.Errorf("%s: own: %v, needs a restart: %v", name, isOwn(f), needsRestart(name))
		}
	}
	own := Own(whole())
	for _, want := range []string{"data_dir", "blob.url", "registries", "providers[0].command", "providers[0].ssh.key_file", "providers[0].hosts[0].key_file", "providers[0].token_file", "pools[0].network.password_file"} {
		if !slices.Contains(own, want) {
			t.Errorf("%s is no server's own: %q", want, own)
		}
	}
	for _, path := range own {
		if !IsOwn(path) {
			t.Errorf("%s is a server's own, and IsOwn does not say so", path)
		}
	}
	for path, want := range map[string]bool{"providers[3].credentials.file": true, "pools[a].network.ca_file": true, "providers[3].boot_probe.command": false, "pools[0].max": false, "providers[0].environment": false} {
		if IsOwn(path) != want {
			t.Errorf("IsOwn of %s: %v", path, !want)
		}
	}
	if part := Own(Cluster(whole())); len(part) > 0 {
		t.Errorf("the cluster's part has %q", part)
	}
}

// Both parts of one configuration are that configuration.
func TestPartsMakeTheWhole(t *testing.T) {
	for name, c := range map[string]*api.ServerConfig{"every field": whole(), "a usual one": good()} {
		Defaults(c)
		content, err := Content(c)
		if err != nil {
			t.Fatal(err)
		}
		part, unknown, err := Parse(content)
		if err != nil || unknown != "" {
			t.Fatalf("%s: %q %v", name, unknown, err)
		}
		if again, _ := Content(part); again != content {
			t.Errorf("%s: read and written again it is\n%s, was\n%s", name, again, content)
		}
		if joined := Join(part, c); !reflect.DeepEqual(joined, c) {
			a, _ := json.Marshal(joined)
			b, _ := json.Marshal(c)
			t.Errorf("%s: joined\n%s, was\n%s", name, a, b)
		}
	}
}

// A server takes pools from the cluster and credentials from its own file, whatever else its file says.
func TestJoinFindsByName(t *testing.T) {
	cluster := &api.ServerConfig{
		Providers: []api.ProviderSpec{{Name: "b", Type: api.ProviderHetzner}, {Name: "a", Type: api.ProviderHetzner}, {Name: "new", Type: api.ProviderHetzner}},
		Pools:     []api.PoolSpec{{Name: "p", Provider: "a", Max: 3}},
	}
	own := &api.ServerConfig{
		DataDir: "/d", Listen: "127.0.0.1:1",
		Providers: []api.ProviderSpec{{Name: "a", CloudSpec: api.CloudSpec{TokenFile: "/a"}}, {Name: "b", CloudSpec: api.CloudSpec{TokenFile: "/b"}}, {Name: "gone", CloudSpec: api.CloudSpec{TokenFile: "/c"}}},
		Pools:     []api.PoolSpec{{Name: "p", Provider: "a", Max: 9}, {Name: "q", Provider: "a"}},
	}
	c := Join(cluster, own)
	if c.DataDir != "/d" || c.Listen != "127.0.0.1:1" || len(c.Pools) != 1 || c.Pools[0].Max != 3 || len(c.Providers) != 3 {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]string{"a": "/a", "b": "/b", "new": ""} {
		if got := c.Provider(name).TokenFile; got != want {
			t.Errorf("token file of %s: %q, want %q", name, got, want)
		}
	}
	if cluster.Providers[0].TokenFile != "" {
		t.Error("the cluster's part was changed")
	}
}

func TestNewerConfigurationIsRead(t *testing.T) {
	c, unknown, err := Parse(`{"pools":[{"name":"p","provider":"a","from_the_future":1}]}`)
	if err != nil || unknown != `"from_the_future"` || len(c.Pools) != 1 {
		t.Errorf("%+v %s %v", c, unknown, err)
	}
	if _, _, err := Parse(`{"pools":`); err == nil {
		t.Error("half a configuration was read")
	}
}

// What a newer version adds to the defaults is no difference to a configuration that was applied before.
func TestDifferencesKnowDefaults(t *testing.T) {
	file := good()
	Defaults(file)
	bare := good()
	if d, err := Differences(bare, file); err != nil || len(d) > 0 {
		t.Errorf("with defaults and without: %v %v", d, err)
	}
	file.Listen, file.Pools[0].Max = "127.0.0.1:9", 77
	d, err := Differences(bare, file)
	if err != nil || len(d) != 1 || d[0].Field != "pools[dev].max" || d[0].Restart {
		t.Errorf("%v %v", d, err)
	}
}
