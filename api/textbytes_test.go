package api

import (
	"reflect"
	"strings"
	"testing"
)

// Each text and each list of a spec counts, on every level: filled, it makes the spec larger.
func TestEveryTextCounts(t *testing.T) {
	const long = 1000
	var each func(t *testing.T, spec *JobSpec, v reflect.Value, path string)
	each = func(t *testing.T, spec *JobSpec, v reflect.Value, path string) {
		grows := func(least int, value reflect.Value) {
			before := TextBytes(spec)
			v.Set(value)
			if after := TextBytes(spec); after < before+least {
				t.Errorf("%s: %d bytes, and %d with %d more", path, before, after, least)
			}
		}
		text := strings.Repeat("x", long)
		switch v.Kind() {
		case reflect.String:
			grows(long, reflect.ValueOf(text).Convert(v.Type()))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			each(t, spec, v.Elem(), path)
		case reflect.Struct:
			for i := range v.NumField() {
				each(t, spec, v.Field(i), path+"."+v.Type().Field(i).Name)
			}
		case reflect.Slice:
			grows(2, reflect.MakeSlice(v.Type(), 2, 2))
			each(t, spec, v.Index(1), path+"[1]")
		case reflect.Map:
			m := reflect.MakeMap(v.Type())
			m.SetMapIndex(reflect.ValueOf(text), reflect.ValueOf(text))
			grows(2*long, m)
		case reflect.Int, reflect.Int64, reflect.Float64, reflect.Bool:
		default:
			t.Errorf("%s is of a kind that is not counted: %s", path, v.Type())
		}
	}
	spec := &JobSpec{}
	each(t, spec, reflect.ValueOf(spec).Elem(), "spec")
	if TextBytes(&JobSpec{}) != 0 {
		t.Error("an empty spec has no text")
	}
}

func BenchmarkTextBytes(b *testing.B) {
	s := good()
	for b.Loop() {
		TextBytes(s)
	}
}
