package agent

import (
	"encoding/json"
	"testing"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// asBefore is an allocation's spec as servers sent it, and agents kept it on disk, before the job's
// template was on the wire itself. Neighbours of this version speak it.
const asBefore = `{"namespace":"default","job":"j","job_uid":"u","version":1,"index":2,"count":3,"attempt":1,` +
	`"command":["sh","-c","x"],"image":"a:1","env":{"A":"b"},"workdir":"/w","resources":{"cpu":500,"memory":1048576,"disk":0},` +
	`"pids_limit":7,"cpu_max":1500,"isolation":"container","runtime":"crun","exclusive":true,` +
	`"ready":{"command":["true"],"interval_ms":250},"cores":[1],"entrypoint":["e"],"user":"1000","network":"bridge",` +
	`"egress":["10.0.0.0/8"],"ports":[80],"timeout_ms":1000,"kill_grace_ms":2000,"output_limit":64,` +
	`"inputs":[{"path":"in","content":"aGk=","mode":420}],"outputs":[{"path":"out","optional":true}],"give_up_input_ms":3000}`

// The template is embedded: its fields stand where they stood, and those with another form on the wire keep it.
func TestAllocSpecIsWrittenAsBefore(t *testing.T) {
	var s AllocSpec
	if err := json.Unmarshal([]byte(asBefore), &s); err != nil {
		t.Fatal(err)
	}
	if s.Command[2] != "x" || s.Network != "bridge" || s.Resources.CPU != 500 || string(s.Inputs[0].Content) != "hi" || s.Ready.IntervalMillis != 250 {
		t.Errorf("read %+v", s)
	}
	b, err := json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := sorted(t, b), sorted(t, []byte(asBefore)); got != want {
		t.Errorf("written\n%s\nbefore\n%s", got, want)
	}
	// Fields of the template that the wire has in another form are not sent in the file's.
	s = AllocSpec{Template: api.Template{Command: []string{"x"}}, Resources: muster.Resources{CPU: 1}, KillGraceMillis: 5}
	b, err = json.Marshal(&s)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(b, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kill_grace", "constraints", "pool", "priority", "inputs", "ready"} {
		if v, there := fields[name]; there {
			t.Errorf("%s is sent: %s", name, v)
		}
	}
}

// sorted is a JSON text with its keys in order.
func sorted(t *testing.T, b []byte) string {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
