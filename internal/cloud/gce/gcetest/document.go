package gcetest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed methods.json
var methodsJSON []byte

// document is the part of Google's discovery document that is kept.
type document struct {
	Parameters map[string]parameter `json:"parameters"`
	Methods    map[string]*method   `json:"methods"`
	Schemas    map[string]*schema   `json:"schemas"`
}

type method struct {
	HTTPMethod string               `json:"httpMethod"`
	Path       string               `json:"path"`
	Parameters map[string]parameter `json:"parameters"`
	Request    string               `json:"request"`
	Response   string               `json:"response"`
}

type parameter struct {
	Type     string `json:"type"`
	Location string `json:"location"`
	Required bool   `json:"required"`
	Pattern  string `json:"pattern"`
}

type schema struct {
	Type       string             `json:"type"`
	Ref        string             `json:"$ref"`
	Properties map[string]*schema `json:"properties"`
	Additional *schema            `json:"additionalProperties"`
	Items      *schema            `json:"items"`
	Enum       []string           `json:"enum"`
}

var read = sync.OnceValue(func() *document {
	var d document
	if err := json.Unmarshal(methodsJSON, &d); err != nil {
		panic(err) // the file is part of the program
	}
	return &d
})

// find is the method of a request and what its path names; an empty name: there is none.
func (d *document) find(httpMethod, path string) (name string, in map[string]string) {
	have := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for name, m := range d.Methods {
		want := strings.Split(m.Path, "/")
		if m.HTTPMethod != httpMethod || len(want) != len(have) {
			continue
		}
		in := map[string]string{}
		fits := true
		for i, w := range want {
			if key, ok := strings.CutPrefix(w, "{"); ok {
				key = strings.TrimSuffix(key, "}")
				p := m.Parameters[key].Pattern
				if ok, err := regexp.MatchString("^(?:"+p+")$", have[i]); p != "" && (err != nil || !ok) {
					fits = false
				}
				in[key] = have[i]
			} else if w != have[i] {
				fits = false
			}
		}
		if fits {
			return name, in
		}
	}
	return "", nil
}

// checkQuery returns an error that names the first parameter that the method does not have.
func (d *document) checkQuery(m *method, query url.Values) error {
	for k, values := range query {
		p, ok := m.Parameters[k]
		if !ok || p.Location != "query" {
			if p, ok = d.Parameters[k]; !ok {
				return fmt.Errorf("invalid JSON payload received: unknown name %q: cannot bind query parameter", k)
			}
		}
		var err error
		switch p.Type {
		case "integer":
			_, err = strconv.ParseUint(values[0], 10, 32)
		case "boolean":
			_, err = strconv.ParseBool(values[0])
		}
		if err != nil {
			return fmt.Errorf("invalid value for %q: %q", k, values[0])
		}
	}
	if mask := query.Get("fields"); mask != "" {
		rest, err := d.checkMask(&schema{Ref: m.Response}, mask)
		if err == nil && rest != "" {
			err = fmt.Errorf("at %q", rest)
		}
		if err != nil {
			return fmt.Errorf("invalid field selection: %w", err)
		}
	}
	return nil
}

var maskName = regexp.MustCompile(`^([A-Za-z]+|\*)`)

// checkMask reads fields of a mask, as a,b/c,d(e,f), up to a parenthesis that closes.
func (d *document) checkMask(of *schema, mask string) (rest string, err error) {
	for {
		at := of
		for {
			name := maskName.FindString(mask)
			at = d.inside(at, name)
			if name == "" || at == nil {
				return "", fmt.Errorf("%q", mask)
			}
			if mask = mask[len(name):]; !strings.HasPrefix(mask, "/") {
				break
			}
			mask = mask[1:]
			if strings.HasPrefix(mask, "(") {
				break
			}
		}
		if strings.HasPrefix(mask, "(") {
			if mask, err = d.checkMask(at, mask[1:]); err != nil {
				return "", err
			}
			if !strings.HasPrefix(mask, ")") {
				return "", fmt.Errorf("at %q", mask)
			}
			mask = mask[1:]
		}
		if !strings.HasPrefix(mask, ",") {
			return mask, nil
		}
		mask = mask[1:]
	}
}

// inside is the schema of a field; nil: there is none.
func (d *document) inside(s *schema, name string) *schema {
	s = d.resolve(s)
	if s.Type == "array" {
		s = d.resolve(s.Items)
	}
	if name == "*" {
		return s.Additional
	}
	return s.Properties[name]
}

func (d *document) resolve(s *schema) *schema {
	for s.Ref != "" {
		s = d.Schemas[s.Ref]
	}
	return s
}

// check returns an error that names the first thing in a value that its schema does not know.
func (d *document) check(at string, s *schema, value any) error {
	s = d.resolve(s)
	wrong := fmt.Errorf("invalid value for field '%s': not %s", at, s.Type)
	switch v := value.(type) {
	case map[string]any:
		if s.Type != "object" {
			return wrong
		}
		for k, field := range v {
			of := s.Properties[k]
			if of == nil {
				of = s.Additional
			}
			if of == nil {
				return fmt.Errorf("invalid JSON payload received: unknown name %q at '%s': cannot find field", k, at)
			}
			if err := d.check(at+"."+k, of, field); err != nil {
				return err
			}
		}
	case []any:
		if s.Type != "array" {
			return wrong
		}
		for i, item := range v {
			if err := d.check(at+"["+strconv.Itoa(i)+"]", s.Items, item); err != nil {
				return err
			}
		}
	case string:
		if s.Type != "string" || len(s.Enum) > 0 && !slices.Contains(s.Enum, v) {
			return fmt.Errorf("%w, or not one of its values: %q", wrong, v)
		}
	case bool:
		if s.Type != "boolean" {
			return wrong
		}
	case float64:
		if s.Type != "integer" && s.Type != "number" {
			return wrong
		}
	}
	return nil
}
