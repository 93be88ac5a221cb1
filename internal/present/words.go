package present

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Time is a moment for the API. The zero moment means "not yet" in a row and becomes nil, which
// JSON leaves out.
func Time(t muster.Time) *time.Time {
	if t == 0 {
		return nil
	}
	s := t.Std()
	return &s
}

// By appends the person or part of the server that did something, as " by who". It is empty if
// nobody is recorded.
func By(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

// Resources shows CPU in cores; memory and disk stay in bytes.
func Resources(r muster.Resources) api.Resources {
	return api.Resources{CPU: float64(r.CPU) / 1000, Memory: int64(r.Memory), Disk: int64(r.Disk)}
}
