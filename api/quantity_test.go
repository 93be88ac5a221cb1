package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "17": 17, "64MiB": 64 << 20, "64 MiB": 64 << 20, "1.5GiB": 3 << 29, "100MB": 100e6, "1kB": 1000, "1KB": 1000, "5B": 5,
		"9007199254740993B": 9007199254740993, "9223372036854775807": math.MaxInt64, ".5KiB": 512,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q: %d, %v", in, got, err)
		}
	}
	for in, want := range map[string]Size{"512m": 512 << 20, "1g": 1 << 30, "1.5 g": 3 << 29, "500Mi": 500 << 20, "2Gi": 2 << 30, "64k": 64 << 10} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%q, as Docker and Kubernetes write it: %d, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{
		"":                     `"" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"512mb":                `"512mb" is not a size here; write 512MiB (in steps of 1024) or 512MB (in steps of 1000)`,
		"2M":                   `"2M" is not a size here; write 2MiB (in steps of 1024) or 2MB (in steps of 1000)`,
		"0x10":                 `"0x10" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"1e3":                  `"1e3" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"1.2.3":                `"1.2.3" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"NaN":                  `"NaN" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"-1":                   `"-1" is out of range; a size is between 0 and 8388607TiB`,
		"9e9TiB":               `"9e9TiB" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"99999999999999999999": `"99999999999999999999" is out of range; a size is between 0 and 8388607TiB`,
		"8388608TiB":           `"8388608TiB" is out of range; a size is between 0 and 8388607TiB`,
		"8388608.0TiB":         `"8388608.0TiB" is out of range; a size is between 0 and 8388607TiB`,
	} {
		if _, err := ParseSize(in); err == nil || err.Error() != want {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestParseCores(t *testing.T) {
	for in, want := range map[string]float64{"0.5": 0.5, "500m": 0.5, "2": 2, "1500m": 1.5, "0": 0, ".5": 0.5} {
		if got, err := ParseCores(in); err != nil || got != want {
			t.Errorf("%q: %g, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "m", "500x", "1 core", "NaN", "Inf", "500mm", "-1", "1e3", "0x1"} {
		if v, err := ParseCores(in); err == nil {
			t.Errorf("%q is read as %g", in, v)
		}
	}
}

func TestQuantitiesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type both struct {
			S Size
			D Duration
		}
		v := both{Size(rapid.Int64Min(0).Draw(t, "size")), Duration(rapid.Int64().Draw(t, "duration"))}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var back both
		if err := json.Unmarshal(b, &back); err != nil || back != v {
			t.Fatalf("%s: %+v, %v", b, back, err)
		}
	})
}

func TestQuantitiesFromJSON(t *testing.T) {
	type both struct {
		S Size     `json:"s"`
		D Duration `json:"d"`
	}
	for in, want := range map[string]both{
		`{"s":1024,"d":"90s"}`:      {1024, Duration(90 * time.Second)},
		`{"s":"1KiB","d":"1h30m"}`:  {1024, Duration(90 * time.Minute)},
		`{"s":null,"d":null}`:       {},
		`{"d":0}`:                   {},
		`{"d":90}`:                  {D: Duration(90 * time.Second)},
		`{"s":"\u0031MiB","d":"0"}`: {S: 1 << 20},
	} {
		var got both
		if err := json.Unmarshal([]byte(in), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for in, want := range map[string]string{
		`{"s":-1}`:               `"-1" is out of range; a size is between 0 and 8388607TiB`,
		`{"s":true}`:             `"true" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		`{"s":[1]}`:              `"[1]" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		`{"d":"7 days"}`:         `"7 days" is not a duration; write a number with a unit (ms, s, m, h, d), as 90s or 1h30m`,
		`{"d":"9999999999h"}`:    `"9999999999h" is out of range; a duration is at most 2562047h`,
		`{"d":"-9999999999h1m"}`: `"-9999999999h1m" is out of range; a duration is at most 2562047h`,
		`{"d":"99999999999"}`:    `"99999999999" is out of range; a duration is at most 2562047h`,
		`{"d":{}}`:               `"{}" is not a duration; write text as "90s" or "10m"`,
	} {
		var got both
		if err := json.Unmarshal([]byte(in), &got); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v", in, err)
		}
	}
}

func TestDurationString(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "1h30m", 10 * time.Second: "10s", time.Hour + time.Second: "1h0m1s", 100 * time.Minute: "1h40m", 30 * time.Minute: "30m"} {
		if got := Duration(d).String(); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

func TestParseDurationAsElsewhere(t *testing.T) {
	for in, want := range map[string]time.Duration{"300": 5 * time.Minute, "1.5": 1500 * time.Millisecond, "0": 0, "1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "90s": 90 * time.Second} {
		if got, err := ParseDuration(in); err != nil || got.Std() != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"1d5", "d", "1dd", "1d-1h", "999999d", "-1d", "1e9", "12345678901234567890", "1d2d", "NaN"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("%q is read as %v", in, got)
		}
	}
}
