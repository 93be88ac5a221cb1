package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// Every module in the programs has the texts that its licence asks for, and is in the bill of materials.
func TestNotice(t *testing.T) {
	programs := []string{"../../cmd/muster", "../../cmd/muster-node", "../../cmd/muster-init"}
	var texts, bom bytes.Buffer
	if err := run(&texts, false, programs); err != nil {
		t.Fatal(err)
	}
	if err := run(&bom, true, programs); err != nil {
		t.Fatal(err)
	}
	var read struct {
		BOMFormat  string
		Components []struct{ Name, Version, PURL string }
	}
	if err := json.Unmarshal(bom.Bytes(), &read); err != nil || read.BOMFormat != "CycloneDX" || len(read.Components) < 20 {
		t.Fatalf("%v: %.500s", err, bom.String())
	}
	for _, c := range read.Components {
		if c.Version == "" || !strings.HasSuffix(c.PURL, "@"+c.Version) || !strings.Contains(texts.String(), "\n"+c.Name+" "+c.Version+", ") {
			t.Errorf("%+v", c)
		}
	}
}
