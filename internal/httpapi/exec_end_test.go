package httpapi

import (
	"strings"
	"testing"
)

// Executions are counted by how they ended.
func TestExecutionsAreCounted(t *testing.T) {
	in := newInside(t)
	for _, script := range []string{"exit 0", "exit 0", "exit 3", "kill -TERM $$"} {
		if a := in.do("POST", in.path+"/exec", `{"command": ["sh", "-c", "`+script+`"]}`); a.StatusCode != 200 {
			t.Fatalf("%s: %d %s", script, a.StatusCode, a.body)
		}
	}
	if a := in.do("POST", in.path+"/exec", `{"command": ["sleep", "10"], "timeout": "50ms"}`); a.StatusCode != 200 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	text := in.do("GET", "/metrics", "").body
	for _, want := range []string{`{result="exit-0"} 2`, `{result="other-exit"} 1`, `{result="signal"} 1`, `{result="time-out"} 1`, `{result="out-of-memory"} 0`} {
		if !strings.Contains(text, "muster_executions_total"+want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
