package config

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"

	"github.com/musterhq/muster/api"
)

// A configuration has two parts. The cluster's part is in the log, the same for all servers: pools, providers,
// shares, policies, retention, the scheduler and quotas. The rest is each server's own, and never leaves it: what
// it takes from its file at its start, credentials, and paths of files. The tag scope:"server" of a field in
// package api says that it is each server's own.

// ownTag is the tag of such fields, ownScope its value.
const ownTag, ownScope = "scope", "server"

func isOwn(f reflect.StructField) bool { return f.Tag.Get(ownTag) == ownScope }

// Cluster is the cluster's part of a configuration, with all defaults. Nothing of the result is shared with s.
func Cluster(s *api.ServerConfig) *api.ServerConfig {
	out := &api.ServerConfig{}
	copyPart(reflect.ValueOf(out).Elem(), reflect.ValueOf(s).Elem())
	Defaults(out)
	stripped := &api.ServerConfig{}
	copyPart(reflect.ValueOf(stripped).Elem(), reflect.ValueOf(out).Elem())
	return stripped
}

// copyPart copies all of src that is not a server's own.
func copyPart(dst, src reflect.Value) {
	switch src.Kind() {
	case reflect.Struct:
		for i := range src.NumField() {
			if f := src.Type().Field(i); f.IsExported() && !isOwn(f) {
				copyPart(dst.Field(i), src.Field(i))
			}
		}
	case reflect.Pointer:
		if !src.IsNil() {
			dst.Set(reflect.New(src.Type().Elem()))
			copyPart(dst.Elem(), src.Elem())
		}
	case reflect.Slice:
		if !src.IsNil() {
			dst.Set(reflect.MakeSlice(src.Type(), src.Len(), src.Len()))
			for i := range src.Len() {
				copyPart(dst.Index(i), src.Index(i))
			}
		}
	case reflect.Map:
		if !src.IsNil() {
			dst.Set(reflect.MakeMapWithSize(src.Type(), src.Len()))
			for it := src.MapRange(); it.Next(); {
				v := reflect.New(src.Type().Elem()).Elem()
				copyPart(v, it.Value())
				dst.SetMapIndex(it.Key(), v)
			}
		}
	default:
		dst.Set(src)
	}
}

// Join is the configuration that a server runs with: the cluster's part, and the server's own part from its file.
// What has a name (providers, hosts, pools) gets what the file has under that name. Nothing of the result is shared
// with cluster.
func Join(cluster, own *api.ServerConfig) *api.ServerConfig {
	out := Cluster(cluster)
	takeOwn(reflect.ValueOf(out).Elem(), reflect.ValueOf(own).Elem())
	Defaults(out)
	return out
}

// takeOwn fills in what is a server's own from src, a value of the same type.
func takeOwn(dst, src reflect.Value) {
	switch dst.Kind() {
	case reflect.Struct:
		for i := range dst.NumField() {
			switch f := dst.Type().Field(i); {
			case !f.IsExported():
			case isOwn(f):
				dst.Field(i).Set(src.Field(i))
			default:
				takeOwn(dst.Field(i), src.Field(i))
			}
		}
	case reflect.Pointer:
		if !dst.IsNil() && !src.IsNil() {
			takeOwn(dst.Elem(), src.Elem())
		}
	case reflect.Slice:
		elem := dst.Type().Elem()
		if elem.Kind() != reflect.Struct {
			return
		}
		if _, named := elem.FieldByName("Name"); !named {
			return
		}
		byName := map[string]reflect.Value{}
		for i := range src.Len() {
			byName[src.Index(i).FieldByName("Name").String()] = src.Index(i)
		}
		for i := range dst.Len() {
			if from, ok := byName[dst.Index(i).FieldByName("Name").String()]; ok {
				takeOwn(dst.Index(i), from)
			}
		}
	}
}

// Own are the fields of a configuration that are set and belong to a server's own file, as "providers[1].token_file".
func Own(s *api.ServerConfig) []string {
	var out []string
	listOwn(reflect.ValueOf(s).Elem(), "", &out)
	return out
}

func listOwn(v reflect.Value, at string, out *[]string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			path := pathOf(at, f)
			switch {
			case !isOwn(f):
				listOwn(v.Field(i), path, out)
			case !v.Field(i).IsZero():
				*out = append(*out, path)
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			listOwn(v.Elem(), at, out)
		}
	case reflect.Slice:
		for i := range v.Len() {
			listOwn(v.Index(i), fmt.Sprintf("%s[%d]", at, i), out)
		}
	}
}

// IsOwn reports whether a field, by its path as "providers[1].token_file", is each server's own or in something that is.
func IsOwn(path string) bool {
	plain := indexes.ReplaceAllString(path, "")
	for name := range ownPaths() {
		if plain == name || strings.HasPrefix(plain, name+".") {
			return true
		}
	}
	return false
}

var indexes = regexp.MustCompile(`\[[^\]]*\]`)

// ownPaths has the paths of all fields that are each server's own, without indexes.
var ownPaths = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	ownTypes(reflect.TypeFor[api.ServerConfig](), "", out)
	return out
})

func ownTypes(t reflect.Type, at string, out map[string]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		ownTypes(t.Elem(), at, out)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			switch {
			case !f.IsExported():
			case isOwn(f):
				out[pathOf(at, f)] = true
			default:
				ownTypes(f.Type, pathOf(at, f), out)
			}
		}
	}
}

// pathOf is the path of a field of the value at a path, as files name it.
func pathOf(at string, f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	switch {
	case name == "":
		return at // an embedded struct
	case at == "":
		return name
	}
	return at + "." + name
}

// Content is the cluster's part as text. It has no secrets. Equal configurations of one version of this program have
// equal text.
func Content(s *api.ServerConfig) (string, error) {
	b, err := json.Marshal(Cluster(s))
	return string(b), err
}

// Digest names a Content.
func Digest(content string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))) }

// Parse reads a Content. unknown names a field that this version does not know, as a newer one has written it; "" if
// there is none.
func Parse(content string) (s *api.ServerConfig, unknown string, err error) {
	s = &api.ServerConfig{}
	if err := json.Unmarshal([]byte(content), s); err != nil {
		return nil, "", err
	}
	strict := json.NewDecoder(strings.NewReader(content))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&api.ServerConfig{}); err != nil {
		_, unknown, _ = strings.Cut(err.Error(), "unknown field ")
	}
	return Cluster(s), unknown, nil
}

// Differences is what would change in the cluster's part if next came into force in place of inForce.
func Differences(inForce, next *api.ServerConfig) ([]Change, error) {
	return Changes(Cluster(inForce), Cluster(next))
}
