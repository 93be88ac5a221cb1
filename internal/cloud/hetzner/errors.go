package hetzner

import (
	"errors"
	"strings"
	"time"

	"github.com/hetznercloud/hcloud-go/v2/hcloud"

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

// slowest is the longest pause after a refusal for too many calls. The header says when all calls of
// the hour are there again, but one comes back each second.
const slowest = time.Minute

// fault is the fault of a call that has not succeeded.
func (p *Provider) fault(c call, resp *hcloud.Response, err error) *muster.Fault {
	var own *muster.Fault
	if errors.As(err, &own) {
		return &muster.Fault{Kind: own.Kind, Message: c.what, Err: err}
	}
	var e hcloud.Error
	switch {
	case errors.As(err, &e):
		f := p.judge(c, e.Code, e.Message)
		f.Err = err
		if f.Kind == muster.FaultRateLimited {
			f.After = p.after(resp)
		}
		if d, ok := e.Details.(hcloud.ErrorDetailsInvalidInput); ok && f.Kind == muster.FaultInvalid && len(d.Fields) > 0 {
			f.Field = fieldOf(d.Fields[0].Name)
		}
		return f
	case resp == nil || resp.Response == nil:
		return c.sent.Fault(c.what, c.effect, err)
	case resp.StatusCode >= 400:
		f := &muster.Fault{Kind: driver.StatusKind(resp.StatusCode, c.effect), Message: c.what, Err: err}
		if f.Kind == muster.FaultRateLimited {
			f.Scope, f.After = muster.Scope{Provider: p.cfg.Name}, p.after(resp)
		}
		if f.Kind == muster.FaultNotFound && c.effect == driver.Makes {
			f.Kind = muster.FaultAmbiguous // not an answer of the API
		}
		return f
	}
	return &muster.Fault{Kind: c.effect.Unclear(), Message: c.what + ": the answer makes no sense", Err: err}
}

// judge is the table of errors. Failed actions have the same codes.
func (p *Provider) judge(c call, code hcloud.ErrorCode, message string) *muster.Fault {
	f := &muster.Fault{Message: c.what, Scope: muster.Scope{}}
	account := muster.Scope{Provider: p.cfg.Name}
	here := muster.Scope{Provider: p.cfg.Name, Offering: c.offering, Zone: c.zone}
	switch code {
	case hcloud.ErrorCodeResourceUnavailable, hcloud.ErrorCodePlacementError, hcloud.ErrorCodeNoSpaceLeftInLocation:
		f.Kind, f.Scope = muster.FaultCapacity, here
	case hcloud.ErrorCodeNoSubnetAvailable, hcloud.ErrorCodeIPNotAvailable:
		// The private network has no address left, whatever the type.
		f.Kind, f.Scope = muster.FaultCapacity, account
	case hcloud.ErrorCodeResourceLimitExceeded:
		f.Kind, f.Scope = muster.FaultQuota, account
	case hcloud.ErrorCodeRateLimitExceeded:
		f.Kind, f.Scope = muster.FaultRateLimited, account
	case hcloud.ErrorCodeUnauthorized, hcloud.ErrorCodeForbidden, hcloud.ErrorCodeTokenReadonly:
		f.Kind = muster.FaultAuth
	case hcloud.ErrorCodeInvalidInput:
		f.Kind = muster.FaultInvalid
		if text := strings.ToLower(message); strings.Contains(text, "placement group") && (strings.Contains(text, "full") || strings.Contains(text, "maximum")) {
			f.Kind, f.Scope = muster.FaultCapacity, here
		}
	case hcloud.ErrorCodeJSONError, hcloud.ErrorCodeInvalidServerType, hcloud.ErrorUnsupportedError, hcloud.ErrorDeprecatedAPIEndpoint,
		hcloud.ErrorCodeNetworksOverlap, hcloud.ErrorCodePrimaryIPAssigned, hcloud.ErrorCodeIncompatibleNetworkType:
		f.Kind = muster.FaultInvalid
	case hcloud.ErrorCodeProtected:
		f.Kind, f.Message = muster.FaultInvalid, c.what+": somebody has protected it: take the protection off, in the console or with hcloud server disable-protection"
	case hcloud.ErrorCodeLocked, hcloud.ErrorCodeConflict, hcloud.ErrorCodeMaintenance, hcloud.ErrorCodeResourceLocked:
		f.Kind = muster.FaultTransient
	case hcloud.ErrorCodeNotFound:
		f.Kind = muster.FaultNotFound
		if c.effect == driver.Makes {
			f.Kind = muster.FaultInvalid // the image, type, location or network of a create
		}
	case hcloud.ErrorCodeUniquenessError:
		f.Kind = muster.FaultAmbiguous // a server of this name exists
	default:
		// server_error, service_error, unknown_error, bad_gateway, timeout, and what is new.
		f.Kind = c.effect.Unclear()
		if strings.HasSuffix(string(code), "_mismatch") {
			f.Kind = muster.FaultInvalid
		}
	}
	return f
}

// after is how long to wait after a refusal for too many calls.
func (p *Provider) after(resp *hcloud.Response) time.Duration {
	if resp == nil || resp.Response == nil {
		return slowest
	}
	if resp.Header.Get("Retry-After") != "" {
		return driver.RetryAfter(resp.Header, p.cfg.Now(), slowest)
	}
	if d := resp.Meta.Ratelimit.Reset.Sub(p.cfg.Now()); d > 0 {
		return min(d, slowest)
	}
	return 20 * time.Second
}

// fieldOf is the field of the configuration that a field of the API comes from.
func fieldOf(name string) string {
	switch name {
	case "server_type":
		return "types"
	case "location":
		return "locations"
	case "networks":
		return "network"
	case "user_data":
		return "user_data_file"
	}
	return name
}
