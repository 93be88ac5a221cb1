package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// cores is a number of cores as users write it: 0.5, or 500m as Kubernetes does.
type cores float64

// CoresVar makes a flag for a number of cores.
func CoresVar(f *pflag.FlagSet, p *float64, name, usage string) {
	f.Var((*cores)(p), name, usage)
}

// Set reads a number of cores, or of thousandths with the unit m. The range is for whoever uses it.
func (c *cores) Set(text string) error {
	number, thousandths := strings.CutSuffix(text, "m")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("write cores as 0.5, or thousandths of one as 500m")
	}
	if thousandths {
		v /= 1000
	}
	*c = cores(v)
	return nil
}

// String is the number, "0" for none, which help texts leave out.
func (c *cores) String() string { return strconv.FormatFloat(float64(*c), 'g', -1, 64) }

// Type is what help texts name the value.
func (c *cores) Type() string { return "cores" }
