package operators

import (
	"strings"
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

// What a pool stops is shown only where it stops something.
func TestStoppedNodesOfAPool(t *testing.T) {
	p := &api.Pool{Max: 3, StopMost: 2, StopTimeout: api.Duration(24 * time.Hour), Nodes: api.PoolNodes{Live: 5, Serving: 3, Stopped: 1, Starting: 1}}
	if got, want := stopText(p), "at most 2 nodes without work instead of destroying them, for 24h"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := stoppedText(&p.Nodes), ", 1 stopped, 1 starting"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// Four of the five count, of three that may be.
	if got := surplusText(p); !strings.HasPrefix(got, "4 nodes, at most 3: ") {
		t.Errorf("surplus: %q", got)
	}
	if got := stopText(&api.Pool{}) + stoppedText(&api.PoolNodes{}) + surplusText(&api.Pool{Max: 1, Nodes: api.PoolNodes{Live: 2, Stopped: 1}}); got != "" {
		t.Errorf("of a pool that stops none: %q", got)
	}
}
