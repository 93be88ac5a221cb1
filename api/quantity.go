package api

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/validate"
)

// Size is an amount of memory or disk. In files and JSON it is a whole number
// of bytes, or text like "64MiB", "1.5GiB" or "100MB". Kubernetes' "64Mi" and Docker's "64m" are
// 64MiB.
type Size int64

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, // as in Kubernetes
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, // as in Docker
}

// ParseSize reads a size as users write it.
func ParseSize(s string) (Size, error) {
	t := strings.TrimSpace(s)
	unit := int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(t, u.suffix); ok {
			t, unit = strings.TrimRight(rest, " "), u.bytes
			break
		}
	}
	if t == "" || strings.Trim(t, "0123456789.") != "" {
		if strings.HasPrefix(t, "-") {
			return 0, sizeRange(s)
		}
		return 0, noSize(s)
	}
	// Whole numbers stay whole: a float has only 53 bits, and a size must read back as itself.
	if !strings.Contains(t, ".") {
		n, err := strconv.ParseInt(t, 10, 64)
		if err != nil || n > math.MaxInt64/unit {
			return 0, sizeRange(s)
		}
		return Size(n * unit), nil
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil {
		return 0, noSize(s)
	}
	if f*float64(unit) >= math.MaxInt64 {
		return 0, sizeRange(s)
	}
	return Size(f * float64(unit)), nil
}

// otherSize is a size whose unit means different things in different programs: 2M is 2,000,000 in
// Kubernetes and 2,097,152 in Docker.
var otherSize = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?) ?([kKmMgGtT])i?[bB]?$`)

// noSize says what to write. Whether M is a million or 2^20 differs from program to program, so
// neither is guessed.
func noSize(s string) error {
	if m := otherSize.FindStringSubmatch(strings.TrimSpace(s)); m != nil {
		unit := strings.ToUpper(m[2])
		return fmt.Errorf("%s is not a size here; write %s%siB (in steps of 1024) or %s%sB (in steps of 1000)", validate.Quote(s), m[1], unit, m[1], unit)
	}
	return fmt.Errorf("%s is not a size; write bytes or a number with a unit, as 64MiB or 1.5GiB", validate.Quote(s))
}

func sizeRange(s string) error {
	return fmt.Errorf("%s is out of range; a size is between 0 and 8388607TiB", validate.Quote(s))
}

// Bytes is the size in the words of package muster.
func (s Size) Bytes() muster.Bytes { return muster.Bytes(s) }

// String is the size with a binary unit.
func (s Size) String() string { return muster.Bytes(s).String() }

// MarshalJSON writes text that reads back as the same size.
func (s Size) MarshalJSON() ([]byte, error) { return json.Marshal(s.text()) }

func (s Size) text() string {
	b := muster.Bytes(s)
	for _, u := range []struct {
		size muster.Bytes
		name string
	}{{muster.TiB, "TiB"}, {muster.GiB, "GiB"}, {muster.MiB, "MiB"}, {muster.KiB, "KiB"}} {
		if b >= u.size && b%u.size == 0 {
			return fmt.Sprintf("%d%s", b/u.size, u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(b))
}

// UnmarshalJSON reads a number of bytes or text; null changes nothing.
func (s *Size) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	t := string(b)
	if strings.HasPrefix(t, `"`) {
		if err := json.Unmarshal(b, &t); err != nil {
			return err
		}
	}
	v, err := ParseSize(t)
	if err != nil {
		return err
	}
	*s = v
	return nil
}

// ParseCores reads a number of cores as users write it: 0.5, or 500m as in Kubernetes.
func ParseCores(s string) (float64, error) {
	digits, thousandths := strings.CutSuffix(strings.TrimSpace(s), "m")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("%s is not a number of cores; write cores as 0.5, or thousandths of one as 500m", validate.Quote(s))
	}
	if thousandths {
		v /= 1000
	}
	return v, nil
}

// Duration is a length of time. In files and JSON it is text like "90s", "10m" or "1h30m".
type Duration time.Duration

// durationPart is a number with a unit that the standard library reads.
const durationPart = `(?:[0-9]+(?:\.[0-9]*)?(?:ns|us|µs|ms|s|m|h))`

// durationForm is how durations are written, of any size.
var durationForm = regexp.MustCompile(`^[-+]?` + durationPart + `+$`)

// days is a duration with days, which the standard library does not read, and the rest, which it
// does.
var days = regexp.MustCompile(`^([0-9]{1,6})d(` + durationPart + `*)$`)

// bareSeconds is a number without a unit. Docker, Kubernetes and Slurm's options all mean seconds.
var bareSeconds = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?$`)

// ParseDuration reads a duration as users write it: as the standard library does, with days (1d,
// 1d12h), and a bare number is seconds.
func ParseDuration(s string) (Duration, error) {
	if bareSeconds.MatchString(s) {
		if v, err := time.ParseDuration(s + "s"); err == nil {
			return Duration(v), nil
		}
		return 0, durationRange(s)
	}
	if v, err := time.ParseDuration(s); err == nil {
		return Duration(v), nil
	}
	if m := days.FindStringSubmatch(s); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 64) // at most six digits
		rest, err := time.ParseDuration("0s" + m[2])
		const day = 24 * time.Hour
		if err == nil && n <= int64((math.MaxInt64-rest)/day) {
			return Duration(time.Duration(n)*day + rest), nil
		}
	}
	if durationForm.MatchString(s) {
		return 0, durationRange(s)
	}
	return 0, fmt.Errorf("%s is not a duration; write a number with a unit (ms, s, m, h, d), as 90s or 1h30m", validate.Quote(s))
}

func durationRange(s string) error {
	return fmt.Errorf("%s is out of range; a duration is at most %dh", validate.Quote(s), math.MaxInt64/int64(time.Hour))
}

// Std is the duration in the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String is the duration as users write it: without trailing zero parts, as "5m" or "1h30m".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// MarshalJSON writes text.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads text; null changes nothing.
func (d *Duration) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	t := string(b)
	if strings.HasPrefix(t, `"`) {
		if err := json.Unmarshal(b, &t); err != nil {
			return err
		}
	} else if _, err := strconv.ParseFloat(t, 64); err != nil {
		return fmt.Errorf("%s is not a duration; write text as \"90s\" or \"10m\"", validate.Quote(t))
	}
	v, err := ParseDuration(t)
	if err != nil {
		return err
	}
	*d = v
	return nil
}
