package operators

import (
	"testing"
	"time"

	"github.com/musterhq/muster/api"
)

// The rates are one sentence, and it says what waits for them.
func TestRatesOfAPoolAreOneSentence(t *testing.T) {
	create := api.CallRate{Provider: "aws", Calls: "create", PerSecond: 2, Burst: 500}
	launch := api.CallRate{Provider: "aws", Calls: "launch", PerSecond: 0.41234, Burst: 5, Waiting: 7, Last: api.Duration(16 * time.Second)}
	waiting := create
	waiting.Waiting, waiting.Last = 12, api.Duration(6*time.Second)
	for want, rates := range map[string][]api.CallRate{
		"": nil,
		"at most 2 creates a second (500 at once), 1 tag changes a second (1 at once); nothing waits":                                                               {create, {Calls: "tags", PerSecond: 1, Burst: 1}},
		"at most 2 creates a second (500 at once), 0.412 launch calls a second (5 at once); waiting: 12 creates, the last for 6s; 7 launch calls, the last for 16s": {waiting, launch},
	} {
		if got := ratesText(&api.Pool{Rates: rates}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
