package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestCoresAreReadAsKubernetesWritesThem(t *testing.T) {
	for in, want := range map[string]float64{"0.5": 0.5, "500m": 0.5, "2": 2, "1500m": 1.5, "0": 0} {
		var v float64
		if err := (*cores)(&v).Set(in); err != nil || v != want {
			t.Errorf("%q: %g, %v", in, v, err)
		}
	}
	for _, in := range []string{"", "m", "500x", "1 core", "NaN", "Inf", "500mm"} {
		var v float64
		if err := (*cores)(&v).Set(in); err == nil {
			t.Errorf("%q is read as %g", in, v)
		}
	}
}

func TestDurationsInFlagsAreThoseOfFiles(t *testing.T) {
	for in, want := range map[string]time.Duration{"90s": 90 * time.Second, "300": 5 * time.Minute, "1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "0": 0} {
		var d time.Duration
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		DurationVar(f, &d, "for", time.Hour, "")
		if err := f.Parse([]string{"--for", in}); err != nil || d != want {
			t.Errorf("%q: %s, %v", in, d, err)
		}
	}
	var d time.Duration
	if err := (*length)(&d).Set("soon"); err == nil || !strings.Contains(err.Error(), "write a number with a unit") {
		t.Error(err)
	}
}

// A default of none is not shown: the text says what it stands for.
func TestNoDurationIsNoDefaultInHelp(t *testing.T) {
	var d time.Duration
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	DurationVar(f, &d, "for", 0, "how long (default: until it is over)")
	DurationVar(f, &d, "every", time.Minute, "how often")
	if help := f.FlagUsages(); strings.Count(help, "default") != 2 || !strings.Contains(help, "(default 1m0s)") {
		t.Error(help)
	}
}
