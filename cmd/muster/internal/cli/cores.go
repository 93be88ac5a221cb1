package cli

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/musterhq/muster/api"
)

// cores is a number of cores as users write it: 0.5, or 500m as Kubernetes does.
type cores float64

// CoresVar makes a flag for a number of cores.
func CoresVar(f *pflag.FlagSet, p *float64, name, usage string) {
	f.Var((*cores)(p), name, usage)
}

// Set reads a number of cores. The range is for whoever uses it.
func (c *cores) Set(text string) error {
	v, err := api.ParseCores(text)
	if err == nil {
		*c = cores(v)
	}
	return err
}

// String is the number, "0" for none, which help texts leave out.
func (c *cores) String() string { return strconv.FormatFloat(float64(*c), 'g', -1, 64) }

// Type is what help texts name the value.
func (c *cores) Type() string { return "cores" }

// length is a duration as users write it in files: 90s, 1h30m, 1d, or seconds without a unit.
type length time.Duration

// DurationVar makes a flag for a duration. Unlike pflag's it also reads what files may have.
func DurationVar(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*length)(p), name, usage)
}

// Set reads a duration.
func (l *length) Set(text string) error {
	v, err := api.ParseDuration(text)
	if err == nil {
		*l = length(v)
	}
	return err
}

// String is the duration; "0" for none, which help texts leave out.
func (l *length) String() string {
	if *l == 0 {
		return "0"
	}
	return time.Duration(*l).String()
}

// Type is what help texts name the value.
func (l *length) Type() string { return "duration" }
