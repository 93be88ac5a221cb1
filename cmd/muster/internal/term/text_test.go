package term

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBriefAndClean(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 3 * time.Millisecond: "3ms", 1234 * time.Millisecond: "1.2s", 59 * time.Second: "59s", time.Minute: "1m", 10 * time.Minute: "10m", 192 * time.Second: "3m12s",
		time.Hour: "1h0m", 5*time.Hour + 3*time.Minute: "5h3m", 50 * time.Hour: "2d2h", -time.Second: "0s", 59*time.Minute + 59*time.Second + 900*time.Millisecond: "1h0m",
	} {
		if got := Brief(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
	var out strings.Builder
	plain, odd := "a\n\"ä€\U0001f600", "b\x1b\u009b\u202e\u200b\u2028\U000e0041\x7f"
	if err := WriteJSON(&out, []string{plain, odd}); err != nil {
		t.Fatal(err)
	}
	var back []string
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || !slices.Equal(back, []string{plain, odd}) {
		t.Errorf("%q: %v", back, err)
	}
	if strings.ContainsFunc(out.String(), unprintable) || !strings.Contains(out.String(), "ä€\U0001f600") {
		t.Errorf("%q", out.String())
	}
	out.Reset()
	WriteTable(&out, []string{"ID", "NOTE"}, [][]string{{"r1", "mine\nr2  claimed\u2028r3"}})
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "mine·r2  claimed·r3") {
		t.Errorf("%q", got)
	}
	out.Reset()
	WriteFields(&out, "Status", "failed", "Reason", "mine\nStatus  succeeded")
	if got := out.String(); got != "Status  failed\nReason  mine\n        Status  succeeded\n" {
		t.Errorf("%q", got)
	}
	if got := Clean("a\tb\nc\x1b[2Jd\u202ee\u0085f\xffä"); got != "a\tb\nc·[2Jd·e·f·ä" {
		t.Errorf("%q", got)
	}
}

func TestAgesAreInWholeSeconds(t *testing.T) {
	now := time.Now()
	for d, want := range map[time.Duration]string{114 * time.Millisecond: "<1s", 4200 * time.Millisecond: "4s", 90 * time.Second: "1m30s", -time.Second: "<1s"} {
		at := now.Add(-d)
		if got := Ago(&at, now); got != want {
			t.Errorf("%s: %s", d, got)
		}
	}
}

func TestProgressBar(t *testing.T) {
	if got, want := ProgressBar(1770, 2, 10, 8218, 10000, "41s"), "[####--------------------] 17% 1772/10000, 10 running, 8218 waiting, 2 failed  41s"; got != want {
		t.Errorf("%q", got)
	}
	if got, want := ProgressBar(9999, 0, 1, 0, 10000, ""), "[#######################-] 99% 9999/10000, 1 running"; got != want {
		t.Errorf("%q", got)
	}
}
