// Command notice writes what goes along with the programs when they are given away: the texts that the licences of the
// modules in them ask for (NOTICE), or a list of those modules for scanners (a CycloneDX bill of materials).
//
//	go run ./internal/notice [-sbom] PACKAGE...
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	sbom := flag.Bool("sbom", false, "a CycloneDX bill of materials instead of the texts")
	flag.Parse()
	if err := run(os.Stdout, *sbom, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "notice:", err)
		os.Exit(1)
	}
}

// module is one that is built into the programs.
type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
}

func run(w io.Writer, sbom bool, packages []string) error {
	all, err := modules(packages)
	if err != nil {
		return err
	}
	if sbom {
		return writeSBOM(w, all)
	}
	return writeTexts(w, all)
}

// modules are those that the packages are built from, without this one, by path.
func modules(packages []string) ([]module, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, packages...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []module
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ Module *module }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if m := p.Module; m != nil && !m.Main {
			if m.Replace != nil {
				m = m.Replace
			}
			all = append(all, *m)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	return slices.CompactFunc(all, func(a, b module) bool { return a.Path == b.Path }), nil
}

// texts are the files of a module that its licence may ask to be passed on.
func (m *module) texts() (found []string, err error) {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", m.Path, err)
	}
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if !e.IsDir() && !strings.HasSuffix(name, ".GO") && slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			found = append(found, filepath.Join(m.Dir, e.Name()))
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("module %s has no text of a licence: nobody may pass it on", m.Path)
	}
	return found, nil
}

func writeTexts(w io.Writer, all []module) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Muster is built from the modules below, each with the texts of its licence.\n")
	for i := range all {
		files, err := all[i].texts()
		if err != nil {
			return err
		}
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "\n%s\n%s %s, %s\n%s\n\n%s\n", strings.Repeat("=", 80), all[i].Path, all[i].Version, filepath.Base(path), strings.Repeat("=", 80), bytes.TrimSpace(text))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// writeSBOM writes CycloneDX 1.5, as far as scanners of vulnerabilities read it.
func writeSBOM(w io.Writer, all []module) error {
	type component struct {
		Type    string `json:"type"`
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
		PURL    string `json:"purl,omitempty"`
	}
	bom := struct {
		Format   string `json:"bomFormat"`
		Spec     string `json:"specVersion"`
		Version  int    `json:"version"`
		Metadata struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}{Format: "CycloneDX", Spec: "1.5", Version: 1}
	bom.Metadata.Component = component{Type: "application", Name: "muster"}
	for i := range all {
		bom.Components = append(bom.Components, component{"library", all[i].Path, all[i].Version, "pkg:golang/" + all[i].Path + "@" + all[i].Version})
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(bom)
}
