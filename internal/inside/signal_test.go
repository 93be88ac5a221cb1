package inside

import "testing"

func TestSignalNames(t *testing.T) {
	for s, want := range map[string]int{"TERM": 15, "sigkill": 9, "2": 2, "64": 64, "HUP": 1, "SYS": 31} {
		if got, ok := ParseSignal(s); !ok || int(got) != want {
			t.Errorf("%s: %d %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "SIG", "0", "65", "-1", "TERMX"} {
		if got, ok := ParseSignal(s); ok {
			t.Errorf("%q: %d", s, got)
		}
	}
	if signalName(9) != "SIGKILL" || signalName(40) != "40" || signalName(0) != "" || signalName(-3) != "" || signalName(1000) != "" {
		t.Error("names")
	}
}
