package exec

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

var update = flag.Bool("update", false, "write docs/provider-exec.schema.json")

// docs/provider-exec.schema.json is what the types of the protocol say: with -update it is written, else compared.
func TestSchema(t *testing.T) {
	const path = "../../../docs/provider-exec.schema.json"
	defs := map[string]any{}
	describe(reflect.TypeFor[Request](), defs)
	describe(reflect.TypeFor[Answer](), defs)
	request := defs["Request"].(map[string]any)["properties"].(map[string]any)
	request["version"] = map[string]any{"const": Version}
	request["op"] = map[string]any{"enum": []string{opOffers, opCreate, opDestroy, opList, opTags}}
	defs["Error"].(map[string]any)["properties"].(map[string]any)["kind"] = map[string]any{"enum": kinds()}
	b, err := json.MarshalIndent(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Muster's provider of type exec: stdin is a Request, stdout an Answer",
		"oneOf": []any{ref("Request"), ref("Answer")}, "$defs": defs,
	}, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	b = append(b, '\n')
	if *update {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if was, err := os.ReadFile(path); err != nil || !bytes.Equal(was, b) {
		t.Errorf("%s is not what the types say; run this test with -update (%v)", path, err)
	}
}

func ref(name string) map[string]any { return map[string]any{"$ref": "#/$defs/" + name} }

// describe adds a struct to defs, with all that it holds, and is what refers to a type.
func describe(t reflect.Type, defs map[string]any) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[api.Size]():
		return map[string]any{"type": []string{"integer", "string"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return describe(t.Elem(), defs)
	case reflect.Slice:
		return map[string]any{"type": "array", "items": describe(t.Elem(), defs)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": describe(t.Elem(), defs)}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int:
		return map[string]any{"type": "integer"}
	}
	if defs[t.Name()] != nil {
		return ref(t.Name())
	}
	properties, required := map[string]any{}, []string{}
	defs[t.Name()] = map[string]any{} // for what holds itself
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		properties[name] = describe(t.Field(i).Type, defs)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	defs[t.Name()] = map[string]any{"type": "object", "properties": properties, "additionalProperties": false, "required": required}
	return ref(t.Name())
}
