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
	for in, want := range map[string]string{
		"":                     `"" is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB`,
		"64Mi":                 `"64Mi" is not a size here; write 64MiB (in steps of 1024) or 64MB (in steps of 1000)`,
		"512m":                 `"512m" is not a size here; write 512MiB (in steps of 1024) or 512MB (in steps of 1000)`,
		"1.5 g":                `"1.5 g" is not a size here; write 1.5GiB (in steps of 1024) or 1.5GB (in steps of 1000)`,
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
		`{"d":90}`:               `90 has no unit; write it as 90s, 90m or 90h`,
		`{"d":"7 days"}`:         `"7 days" is not a duration; write a number with a unit (ms, s, m, h), as 90s or 1h30m`,
		`{"d":"9999999999h"}`:    `"9999999999h" is out of range; a duration is at most 2562047h`,
		`{"d":"-9999999999h1m"}`: `"-9999999999h1m" is out of range; a duration is at most 2562047h`,
		`{"d":"99999999999"}`:    `99999999999 has no unit; write it as 99999999999s, 99999999999m or 99999999999h`,
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
