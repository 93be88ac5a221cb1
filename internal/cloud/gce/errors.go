package gce

import (
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// call is what was asked of the cloud, as far as its faults depend on it.
type call struct {
	// what names the call and its object in messages.
	what   string
	effect driver.Effect
	// project is another than the provider's own; empty: that.
	project string
	// launches: it makes or starts an instance, so what is not found is not the instance.
	launches bool
	// offering, zone, market and family are those of an instance to make or start.
	offering muster.OfferingName
	zone     string
	market   muster.Market
	family   string
}

// apiError is what the API said.
type apiError struct{ reason, message string }

// Error is error's.
func (e *apiError) Error() string { return e.reason + ": " + e.message }

// reasonOf is the API's reason of a fault; empty: it gave none.
func reasonOf(err error) string {
	var e *apiError
	if errors.As(err, &e) {
		return e.reason
	}
	return ""
}

// noAddress is how long to wait for an address of a subnetwork that has none left.
const noAddress = 30 * time.Second

// refused is the fault of an answer with an HTTP error. The reason in the body counts: Google answers
// 403 for quotas and for too many calls.
func (p *Provider) refused(c call, status int, header http.Header, body []byte) *muster.Fault {
	var answer struct {
		Error *struct {
			Message string `json:"message"`
			Errors  []struct {
				Reason  string `json:"reason"`
				Message string `json:"message"`
			} `json:"errors"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error == nil {
		// Not the API, but something before it. That nothing is there is then no answer.
		f := &muster.Fault{Kind: driver.StatusKind(status, c.effect), Message: c.what + ": " + http.StatusText(status)}
		switch f.Kind {
		case muster.FaultNotFound:
			f.Kind = c.effect.Unclear()
		case muster.FaultRateLimited:
			f.Scope, f.After = muster.Scope{Provider: p.cfg.Name}, driver.RetryAfter(header, p.cfg.Now(), p.nextMinute())
		}
		return f
	}
	e := &apiError{message: answer.Error.Message}
	if len(answer.Error.Errors) > 0 {
		e.reason = answer.Error.Errors[0].Reason
	}
	return p.judge(c, status, e, "")
}

// failed is the fault of an operation that has ended; nil: it has succeeded.
func (p *Provider) failed(c call, op *operation) *muster.Fault {
	if op.Error == nil || len(op.Error.Errors) == 0 {
		return nil
	}
	e := op.Error.Errors[0]
	metric := ""
	for _, d := range e.Details {
		if d.QuotaInfo != nil {
			metric = d.QuotaInfo.MetricName
		}
	}
	return p.judge(c, op.HTTPErrorStatusCode, &apiError{reason: e.Code, message: e.Message}, metric)
}

// kindByReason is the table of errors, but for those that depend on more than the reason. A call and
// an operation have the same reasons in two spellings.
var kindByReason = map[string]muster.FaultKind{
	"ZONE_RESOURCE_POOL_EXHAUSTED": muster.FaultCapacity, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": muster.FaultCapacity,
	"RESOURCE_POOL_EXHAUSTED": muster.FaultCapacity, "INSUFFICIENT_CAPACITY": muster.FaultCapacity,
	"IP_SPACE_EXHAUSTED": muster.FaultCapacity, "IP_SPACE_EXHAUSTED_WITH_DETAILS": muster.FaultCapacity,
	"QUOTA_EXCEEDED": muster.FaultQuota, "quotaExceeded": muster.FaultQuota, "limitExceeded": muster.FaultQuota, "LIMIT_EXCEEDED": muster.FaultQuota,
	"rateLimitExceeded": muster.FaultRateLimited, "userRateLimitExceeded": muster.FaultRateLimited, "RATE_LIMIT_EXCEEDED": muster.FaultRateLimited,
	"PERMISSIONS_ERROR": muster.FaultAuth, "forbidden": muster.FaultAuth, "required": muster.FaultAuth, "authError": muster.FaultAuth,
	"accessNotConfigured": muster.FaultAuth, "SERVICE_DISABLED": muster.FaultAuth,
	"invalid": muster.FaultInvalid, "badRequest": muster.FaultInvalid, "UNSUPPORTED_OPERATION": muster.FaultInvalid,
	"INVALID_USAGE": muster.FaultInvalid, "INVALID_FIELD_VALUE": muster.FaultInvalid, "CONDITION_NOT_MET": muster.FaultInvalid,
	"notFound": muster.FaultNotFound, "RESOURCE_NOT_FOUND": muster.FaultNotFound,
	"resourceNotReady": muster.FaultTransient, "RESOURCE_NOT_READY": muster.FaultTransient, "conditionNotMet": muster.FaultTransient,
	"resourceInUseByAnotherResource": muster.FaultTransient, "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": muster.FaultTransient,
	"RESOURCE_OPERATION_RATE_EXCEEDED": muster.FaultTransient,
	"alreadyExists":                    muster.FaultAmbiguous, "RESOURCE_ALREADY_EXISTS": muster.FaultAmbiguous,
}

// judge is the fault of what the API said. metric is the quota that is used up, if it was named.
func (p *Provider) judge(c call, status int, e *apiError, metric string) *muster.Fault {
	f := &muster.Fault{Kind: kindByReason[e.reason], Message: c.what, Err: e}
	if f.Kind == "" {
		// backendError, internalError, and what is new.
		f.Kind = driver.StatusKind(status, c.effect)
		if status == http.StatusBadRequest {
			f.Kind = muster.FaultInvalid
		}
	}
	account := muster.Scope{Provider: p.cfg.Name}
	switch f.Kind {
	case muster.FaultCapacity:
		f.Scope = muster.Scope{Provider: p.cfg.Name, Offering: c.offering, Zone: c.zone, Market: c.market}
		if strings.HasPrefix(e.reason, "IP_SPACE_EXHAUSTED") {
			// The subnetwork has no address left, whatever the type.
			f.Scope, f.After = muster.Scope{Provider: p.cfg.Name, Zone: c.zone}, noAddress
		}
	case muster.FaultQuota:
		f.Scope = account
		if metric == "" {
			metric = metricOf(e.message)
		}
		// Other quotas than those of cores and GPUs have no offering as their family: addresses, disks.
		// GPUS_ALL_REGIONS holds back those that were asked for; others find out by themselves.
		if metric = strings.ToUpper(last(metric)); c.family != "" && (strings.HasSuffix(metric, "CPUS") || strings.Contains(metric, "GPUS")) {
			f.Scope.Family = c.family
		}
	case muster.FaultRateLimited:
		f.Scope, f.After = account, p.nextMinute()
	case muster.FaultNotFound:
		if c.launches {
			f.Kind = muster.FaultInvalid // the image, the subnetwork or the type
			f.Field = fieldOf(e.message)
		}
	case muster.FaultInvalid:
		f.Field = fieldOf(e.message)
	}
	return f
}

// quotaMetric is how a refusal names the quota, as: Quota 'N2_CPUS' exceeded. Limit: 24.0 in region R.
var quotaMetric = regexp.MustCompile(`'([A-Z0-9_]+)'`)

func metricOf(message string) string {
	if m := quotaMetric.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	return ""
}

// nextMinute is the time to the next full minute of the clock, when the project has all its calls
// again.
func (p *Provider) nextMinute() time.Duration {
	now := p.cfg.Now()
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}

// fieldOf is the field of the configuration that a refusal is about; empty: it does not say.
func fieldOf(message string) string {
	for _, f := range []struct{ theirs, ours string }{{"machineType", "types"}, {"user-data", "user_data_file"}, {"subnetwork", "network"},
		{"sourceImage", "image"}, {"/images/", "image"}, {"diskSizeGb", "disk"}, {"vmExternalIpAccess", "public_ip"}, {"maxRunDuration", "max_life"}} {
		if strings.Contains(message, f.theirs) {
			return f.ours
		}
	}
	return ""
}
