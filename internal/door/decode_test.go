package door

import (
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

type sheet struct {
	Name  string            `json:"name" maxLength:"5"`
	Count int               `json:"count" zero:"1"`
	Size  api.Size          `json:"size"`
	Wait  api.Duration      `json:"wait"`
	Env   map[string]string `json:"env"`
	Rows  []struct {
		On bool `json:"on"`
	} `json:"rows"`
	Blob []byte `json:"blob"`
}

func TestDecodeIsStrict(t *testing.T) {
	var all sheet
	if p := Decode([]byte(`{"name":"a","count":2,"size":"1MiB","wait":"2s","env":{"A":"b"},"rows":[{"on":true}],"blob":"aGk="}`), &all); p != nil {
		t.Fatal(p)
	}
	if all.Name != "a" || all.Count != 2 || all.Size != 1<<20 || all.Env["A"] != "b" || !all.Rows[0].On || string(all.Blob) != "hi" {
		t.Errorf("%+v", all)
	}
	for body, want := range map[string]string{
		``:                        "body is missing",
		`{`:                       "line 1, column",
		"\xff":                    "not UTF-8",
		`{"nmae":"a"}`:            "body.nmae is not known; did you mean name?",
		`{"other":1}`:             "body.other is not known; known are",
		`{"name":"a","name":"b"}`: "body.name is given twice",
		`{"name":null}`:           "body.name is null",
		`{"name":1}`:              "body.name is the number 1; it should be a text",
		`{"name":"abcdef"}`:       "body.name has more than 5 characters",
		`{"name":"a\u0007"}`:      "neither text nor a space",
		`{"count":0}`:             "leave it out for the default (1)",
		`{"count":1.5}`:           "it should be a whole number",
		`{"size":"much"}`:         "body.size",
		`{"rows":[{"on":1}]}`:     "body.rows[0].on is the number 1; it should be true or false",
		`{"rows":{}}`:             "it should be a list",
		`{"env":[]}`:              "it should be an object",
		`{"blob":"?"}`:            "is not base64",
	} {
		p := Decode([]byte(body), &sheet{})
		if p == nil {
			t.Errorf("%s: taken", body)
			continue
		}
		var said []string
		for _, f := range p.Errors {
			said = append(said, f.Location+" "+f.Message)
		}
		if got := strings.Join(said, "; "); p.Status < 400 || p.Status > 499 || !strings.Contains(got, want) {
			t.Errorf("%s: %d %s, want %q", body, p.Status, got, want)
		}
	}
}

func TestDecodeBoundsWhatItSays(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	if p := Decode([]byte(deep), &sheet{}); p == nil || len(p.Errors) > maxProblems {
		t.Errorf("%+v", p)
	}
	var many strings.Builder
	many.WriteString(`{"rows":[`)
	for i := range 1000 {
		if i > 0 {
			many.WriteByte(',')
		}
		many.WriteString(`{"off":1}`)
	}
	many.WriteString(`]}`)
	if p := Decode([]byte(many.String()), &sheet{}); p == nil || len(p.Errors) != maxProblems {
		t.Errorf("%d fields are named", len(p.Errors))
	}
}

// Claims and executions are the bodies that clients wait for.
func BenchmarkDecode(b *testing.B) {
	for name, c := range map[string]struct {
		body string
		into func() any
	}{
		"claim":     {`{"environment":"python","ttl":"10m","idle":"1m","wait":"5s","note":"a test"}`, func() any { return new(api.ClaimRequest) }},
		"execution": {`{"command":["sh","-c","echo hello"],"env":{"A":"b"},"workdir":"/w","timeout":"30s"}`, func() any { return new(api.ExecRequest) }},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if p := Decode([]byte(c.body), c.into()); p != nil {
					b.Fatal(p)
				}
			}
		})
	}
}
