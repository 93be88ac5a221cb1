package openstack

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// call is what was asked of the cloud, as far as its faults depend on it.
type call struct {
	// what names the call and its object in messages.
	what   string
	effect driver.Effect
	// offering and zone are those of a create.
	offering muster.OfferingName
	zone     string
	sent     *driver.Sent
}

// pause is how long to wait after a refusal for too many calls that names no time.
const pause = 10 * time.Second

// fault is the fault of a call that has not succeeded.
func (p *Provider) fault(c call, err error) *muster.Fault {
	var own *muster.Fault
	if errors.As(err, &own) {
		return &muster.Fault{Kind: own.Kind, Field: own.Field, After: own.After, Scope: own.Scope, Message: c.what, Err: err}
	}
	// The library gets a new token once. Both of its errors hide what they are about from errors.As.
	var noToken *gophercloud.ErrUnableToReauthenticate
	var after *gophercloud.ErrErrorAfterReauthentication
	switch {
	case errors.As(err, &noToken):
		p.sessions.Forget(0)    // the credentials in clouds.yaml may be new
		c.effect = driver.Reads // the call itself was refused, so nothing has happened
		f := p.fault(c, noToken.ErrReauth)
		f.Message += ": a new token"
		return f
	case errors.As(err, &after):
		return p.fault(c, after.ErrOriginal)
	}
	var e gophercloud.ErrUnexpectedResponseCode
	if !errors.As(err, &e) {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return &muster.Fault{Kind: c.effect.Unclear(), Message: c.what + ": the answer makes no sense", Err: err}
		}
		return c.sent.Fault(c.what, c.effect, err)
	}
	text, ok := messageOf(e.Body)
	f := p.judge(c, e.Actual, text, ok)
	f.Err = errors.New(http.StatusText(e.Actual))
	if text != "" {
		f.Err = errors.New(text)
	}
	if f.Kind == muster.FaultRateLimited {
		f.After = driver.RetryAfter(e.ResponseHeader, p.cfg.Now(), pause)
	}
	return f
}

// messageOf is the message of an error body. Each service has one object with a name of its own
// around it, as badRequest, forbidden, error or NeutronError. The second result is false if the body
// is not of the API, as that of a proxy.
func messageOf(body []byte) (string, bool) {
	var outer map[string]json.RawMessage
	if json.Unmarshal(body, &outer) != nil {
		return "", false
	}
	for _, raw := range outer {
		var inner struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(raw, &inner) == nil && inner.Message != "" {
			return inner.Message, true
		}
	}
	return "", false
}

// judge is the table of errors. Statuses alone are never enough: quotas come as 403, 409 and 413.
func (p *Provider) judge(c call, status int, message string, parsed bool) *muster.Fault {
	f := &muster.Fault{Message: c.what}
	account := muster.Scope{Provider: p.cfg.Name}
	text := strings.ToLower(message)
	quota := strings.Contains(text, "quota") || strings.Contains(text, "maximum number of ports exceeded")
	switch {
	case status == http.StatusUnauthorized:
		f.Kind = muster.FaultAuth
	case status == http.StatusTooManyRequests, status == http.StatusRequestEntityTooLarge && !quota:
		f.Kind, f.Scope = muster.FaultRateLimited, account
	case !parsed:
		f.Kind = c.effect.Unclear() // a proxy's answer says nothing about the call
	case quota && status < http.StatusInternalServerError:
		f.Kind, f.Scope = muster.FaultQuota, account
	case status == http.StatusForbidden && strings.Contains(text, "zero disk"):
		f.Kind, f.Field = muster.FaultInvalid, "types"
	case status == http.StatusForbidden:
		f.Kind = muster.FaultAuth
	case strings.Contains(text, "is locked"):
		f.Kind, f.Message = muster.FaultInvalid, c.what+": somebody has locked it: openstack server unlock takes that off"
	case status == http.StatusNotFound && c.effect == driver.Reads:
		f.Kind = muster.FaultNotFound
	case status == http.StatusBadRequest, status == http.StatusNotFound:
		f.Kind, f.Field = muster.FaultInvalid, fieldOf(text)
	case status == http.StatusNotAcceptable:
		f.Kind, f.Message = muster.FaultInvalid, c.what+": Muster needs Nova's microversion "+microversion+" (Rocky)"
	case status == http.StatusConflict:
		f.Kind = muster.FaultTransient
	case status >= http.StatusInternalServerError:
		f.Kind = c.effect.Unclear()
	default:
		f.Kind = muster.FaultInvalid
	}
	return f
}

// fieldOf is the field of the configuration that a message is about.
func fieldOf(text string) string {
	for _, w := range [][2]string{{"flavor", "types"}, {"image", "image"}, {"security group", "security_groups"}, {"security_group", "security_groups"},
		{"network", "network"}, {"user_data", "user_data_file"}, {"user data", "user_data_file"}} {
		if strings.Contains(text, w[0]) {
			return w[1]
		}
	}
	return ""
}

// buildFault is why a server in status ERROR will never run, by the message of its fault.
func (p *Provider) buildFault(id muster.InstanceID, offering muster.OfferingName, zone, message string) *muster.Fault {
	f := &muster.Fault{Kind: muster.FaultTransient, Message: "server " + string(id) + " could not be built"}
	if message != "" {
		f.Err = errors.New(message)
	}
	account := muster.Scope{Provider: p.cfg.Name}
	switch text := strings.ToLower(message); {
	case strings.Contains(text, "quota"), strings.Contains(text, "maximum number of ports exceeded"):
		f.Kind, f.Scope = muster.FaultQuota, account
	case strings.Contains(text, "no more ip addresses"), strings.Contains(text, "no fixed ip"):
		// The network has no address left, whatever the flavor.
		f.Kind, f.Scope = muster.FaultCapacity, account
	case strings.Contains(text, "no valid host"), strings.Contains(text, "exceeded maximum number of retries"),
		strings.Contains(text, "exhausted all hosts"), strings.Contains(text, "failed to allocate the network"),
		strings.Contains(text, "insufficient compute resources"):
		f.Kind, f.Scope = muster.FaultCapacity, muster.Scope{Provider: p.cfg.Name, Offering: offering, Zone: zone, Market: muster.OnDemand}
	case strings.Contains(text, "disk is too small"), strings.Contains(text, "memory is too small"):
		f.Kind, f.Field = muster.FaultInvalid, "types"
	case strings.Contains(text, "image") && (strings.Contains(text, "could not be found") || strings.Contains(text, "unacceptable")):
		f.Kind, f.Field = muster.FaultInvalid, "image"
	}
	return f
}
