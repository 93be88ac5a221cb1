package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// The log holds digests of specs and of submissions, and compares them with new ones when it is applied. These were
// made by the version before api.Template; a version that comes to others makes replicas differ.
func TestDigestsAreThoseOfOlderVersions(t *testing.T) {
	for text, want := range map[string][2]string{
		`{"name":"a","command":["true"]}`: {
			"490bfc20c4f1756b8521e1b2c2c5ff16b70cad38d7e35f9cd1d42dc39bb62e89", "762442b28f34776496aada4ded986d05b96a2ddf452d4f171d770ac4f3e39fa9"},
		`{"name":"web","type":"service","count":2,"priority":60,"command":["sh","-c","a <b> & c"],"image":"a:1","isolation":"container",` +
			`"runtime":"crun","entrypoint":["e"],"user":"u","network":"bridge","egress":["10.0.0.0/8"],"ports":[80],"env":{"B":"2","A":"<1>"},` +
			`"workdir":"/w","resources":{"cpu":0.5,"memory":"64MiB"},"restart":{"on":["any"]},"update":{"max_parallel":2},"timeout":"5m",` +
			`"kill_grace":"3s","ready":{"command":["x"]},"constraints":[{"attribute":"os","value":"linux"}],"affinities":[{"attribute":"zone","value":"a"}],` +
			`"spread":[{"attribute":"zone"}],"distinct_hosts":true,"exclusive":true,"affinity":"x","pool":"p","inputs":[{"path":"in","content":"x"}],` +
			`"outputs":[{"path":"out"}],"output_limit":"1MiB"}`: {
			"ac0d7b061abcd42a646512da33f7e90cb201dc54e524c301fdc2f8cc65103dbb", "55a8583e307e8d4e34e1d6a56a5134db81cfa36e0a3e6c1f3b38e71459d3b2d8"},
	} {
		var s JobSpec
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(s.Canonical())
		if got := hex.EncodeToString(sum[:]); got != want[0] {
			t.Errorf("%s: canonical form is now\n%s", s.Name, s.Canonical())
		}
		sum, err := (&JobSubmission{Spec: s, Replace: true}).Digest()
		if got := hex.EncodeToString(sum[:]); err != nil || got != want[1] {
			t.Errorf("%s: digest of the submission is now %s, %v", s.Name, got, err)
		}
	}
	// All that came later follows in the order of the names, and is part of it.
	s := &JobSpec{Template: Template{Image: "a", Hostname: "h"}}
	if got := string(s.Canonical()); !strings.HasSuffix(got, `,"hostname":"h"}`) || !json.Valid([]byte(got)) {
		t.Errorf("got %s", got)
	}
	for _, name := range canonicalOrder {
		found := false
		for _, f := range reflect.VisibleFields(reflect.TypeFor[JobSpec]()) {
			found = found || strings.Split(f.Tag.Get("json"), ",")[0] == name
		}
		if !found {
			t.Errorf("there is no field %s", name)
		}
	}
}
