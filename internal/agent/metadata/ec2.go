package metadata

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/musterhq/muster"
	wire "github.com/musterhq/muster/internal/wire/agent"
)

// Paths and header fields of EC2's service in its second version (AWS, "Use the Instance Metadata
// Service", "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "View
// scheduled events").
const (
	ec2TokenPath       = "/latest/api/token"
	ec2TokenTTL        = "X-aws-ec2-metadata-token-ttl-seconds"
	ec2Token           = "X-aws-ec2-metadata-token"
	ec2TokenSeconds    = "21600" // six hours, the longest
	ec2ActionPath      = "/latest/meta-data/spot/instance-action"
	ec2RebalancePath   = "/latest/meta-data/events/recommendations/rebalance"
	ec2MaintenancePath = "/latest/meta-data/events/maintenance/scheduled"
	// ec2EventTime is how times of scheduled events are written.
	ec2EventTime = "2 Jan 2006 15:04:05 MST"
)

type ec2 struct {
	*service
	token string // empty: none yet
}

func (e *ec2) read(ctx context.Context, now time.Time, _ wire.Notice) (wire.Notice, error) {
	var out wire.Notice
	for _, part := range []struct {
		path  string
		parse func([]byte) (wire.Notice, error)
	}{{ec2ActionPath, parseEC2Action}, {ec2RebalancePath, parseEC2Rebalance}, {ec2MaintenancePath, parseEC2Events}} {
		body, err := e.get(ctx, part.path)
		if errors.Is(err, errAbsent) {
			continue // no notice of this kind
		}
		var n wire.Notice
		if err == nil {
			n, err = part.parse(body)
		}
		if err != nil {
			return wire.Notice{}, fmt.Errorf("%s: %w", part.path, err)
		}
		out = worse(out, soon(n, now))
	}
	return out, nil
}

// get asks with a token, and with a new one if that is not taken any more.
func (e *ec2) get(ctx context.Context, path string) ([]byte, error) {
	if e.token != "" {
		body, err := e.ask(ctx, http.MethodGet, path, ec2Token, e.token)
		if !errors.Is(err, errToken) {
			return body, err
		}
	}
	token, err := e.ask(ctx, http.MethodPut, ec2TokenPath, ec2TokenTTL, ec2TokenSeconds)
	if err != nil {
		// Without a token, nothing is known: it must not look like the absence of a notice.
		return nil, fmt.Errorf("no token: %v", err)
	}
	e.token = string(token)
	return e.ask(ctx, http.MethodGet, path, ec2Token, e.token)
}

// parseEC2Action reads a spot notice. Whether the instance is to be stopped or to be terminated, it is
// taken.
func parseEC2Action(b []byte) (wire.Notice, error) {
	var v struct {
		Action string    `json:"action"`
		Time   time.Time `json:"time"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return wire.Notice{}, err
	}
	if v.Action == "" || v.Time.IsZero() {
		return wire.Notice{}, errors.New("a notice without action or time")
	}
	return wire.Notice{Kind: wire.NoticeTaken, At: muster.At(v.Time)}, nil
}

// parseEC2Rebalance reads a recommendation to replace the instance. Its time is when it was given.
func parseEC2Rebalance(b []byte) (wire.Notice, error) {
	var v struct {
		Time time.Time `json:"noticeTime"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return wire.Notice{}, err
	}
	return wire.Notice{Kind: wire.NoticeAtRisk, At: muster.At(v.Time)}, nil
}

// parseEC2Events reads the scheduled events, and returns the first that is not over. Retirement is among
// them: like a restart it is announced weeks ahead and ends what runs there.
func parseEC2Events(b []byte) (out wire.Notice, err error) {
	var list []struct {
		Code      string
		State     string
		NotBefore string
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return out, err
	}
	for _, v := range list {
		if v.State != "active" {
			continue // completed or canceled
		}
		at, err := time.Parse(ec2EventTime, v.NotBefore)
		if err != nil {
			return wire.Notice{}, err
		}
		out = worse(out, wire.Notice{Kind: wire.NoticeMaintenance, At: muster.At(at)})
	}
	return out, nil
}
