package api

import "reflect"

// TextBytes is about how many bytes the texts, lists and maps of a spec take: what users can make
// long in it. It goes by the types, so that a field that is added cannot be forgotten. Bytes count
// twice, because JSON carries them in base64. A caller adds what it takes for the fixed rest.
func TextBytes[T any](spec *T) int { return textBytes(reflect.ValueOf(spec).Elem()) }

// perItem is what an item takes beside its text: its header in memory, its quotes and name in JSON.
const perItem = 16

func textBytes(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.String:
		if l := v.Len(); l > 0 {
			n = perItem + l
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n = textBytes(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += textBytes(v.Field(i))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 2 * v.Len()
		}
		for i := range v.Len() {
			n += perItem + textBytes(v.Index(i))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			n += perItem + textBytes(it.Key()) + textBytes(it.Value())
		}
	}
	return n
}
