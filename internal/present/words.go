package present

import (
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// Time converts a moment for the API. The zero moment means "not yet" in a row. It becomes nil,
// which JSON leaves out.
func Time(t muster.Time) *time.Time {
	if t == 0 {
		return nil
	}
	s := t.Std()
	return &s
}

// By returns " by who", for the end of a sentence; "" if nobody is recorded. who is an operator or
// a part of the server.
func By(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

// Resources shows CPU in cores; rows have thousandths. Memory and disk stay in bytes.
func Resources(r muster.Resources) api.Resources {
	return api.Resources{CPU: float64(r.CPU) / 1000, Memory: int64(r.Memory), Disk: int64(r.Disk)}
}
