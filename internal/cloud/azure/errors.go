package azure

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// about is what a refusal may be about: the offering of a create or start.
type about struct {
	offering muster.OfferingName
	zone     string
	market   muster.Market
	family   string
}

// call is what was asked of the cloud, as far as its faults depend on it.
type call struct {
	// what names the call and its object in messages.
	what   string
	effect driver.Effect
	about  about
	sent   *driver.Sent
}

// refusal is an error of Azure: its code, or the innermost of several, and the text.
type refusal struct{ code, message string }

// Error is error's.
func (r *refusal) Error() string { return r.code + ": " + r.message }

// maxMessage is how much of Azure's text an error shows.
const maxMessage = 400

// blocks says which part of a call's offering a refusal is about.
type blocks int

const (
	nothing blocks = iota
	offeringHere
	// bothMarkets: the offering in its zone, whatever the market.
	bothMarkets
	offeringOnly
	quotaFamily
	account
)

// Times after which to ask again. Karpenter waits an hour after most refusals; the fleet doubles its
// own pauses anyhow.
const (
	capacityAfter   = 5 * time.Minute
	restrictedAfter = time.Hour
	throttledAfter  = 20 * time.Second
)

// rule is one row of the table of errors.
type rule struct {
	codes  string
	kind   muster.FaultKind
	blocks blocks
	hint   string
}

// rules are Azure's codes and what they mean. An error has a code for itself and others nested in it;
// the first rule that fits any of them counts, so wrappers as Conflict come last.
var rules = []rule{
	{"SkuNotAvailable", muster.FaultCapacity, offeringHere, ""},
	{"ZonalAllocationFailed AllocationFailed", muster.FaultCapacity, bothMarkets, ""},
	{"OverconstrainedZonalAllocationRequest OverconstrainedAllocationRequest", muster.FaultCapacity, offeringHere, ""},
	{"SubnetIsFull", muster.FaultQuota, account, "the subnet has no free address: name a larger one in subnet"},
	{"PublicIPCountLimitReached", muster.FaultQuota, account, "ask for more public addresses, or leave public_ip out"},
	{"QuotaExceeded", muster.FaultQuota, quotaFamily, "ask for more with az quota, or in the portal under Quotas"},
	{"TooManyRequests RetryableError OperationTimedOutThrottled", muster.FaultRateLimited, account, ""},
	{"AuthorizationFailed LinkedAuthorizationFailed", muster.FaultAuth, account, "give the server's identity the role of docs/clouds/azure.md"},
	{"SubscriptionNotRegistered MissingSubscriptionRegistration", muster.FaultAuth, account, "run az provider register --namespace Microsoft.Compute, and with Microsoft.Network, once"},
	{"AuthenticationFailed InvalidAuthenticationToken InvalidAuthenticationTokenTenant ExpiredAuthenticationToken DisallowedOperation SubscriptionNotFound ReadOnlyDisabledSubscription",
		muster.FaultAuth, account, ""},
	{"ResourceGroupNotFound", muster.FaultInvalid, account, "make the group of resource_group: az group create"},
	{"RequestDisallowedByPolicy InvalidParameter ImageNotFound PlatformImageNotFound PropertyChangeNotAllowed MarketplacePurchaseEligibilityFailed InvalidRequestFormat InvalidRequestContent BadRequest LocationNotAvailableForResourceType InvalidTemplateDeployment VMSizeDoesntSupportPremiumStorage",
		muster.FaultInvalid, offeringOnly, ""},
	{"ScopeLocked", muster.FaultInvalid, nothing, "somebody has locked it: az lock delete takes the lock off"},
	{"NicReservedForAnotherVm AnotherOperationInProgress OperationPreempted OSProvisioningTimedOut OSProvisioningClientError OSProvisioningInternalError VMStartTimedOut",
		muster.FaultTransient, nothing, ""},
	{"InternalServerError GatewayTimeout InternalExecutionError InternalOperationError ServiceUnavailable ServerTimeout", "", nothing, ""},
	{"ResourceNotFound NotFound", muster.FaultNotFound, nothing, ""},
	{"Conflict", muster.FaultTransient, nothing, ""},
}

// exists are the codes of a create that found a machine of its name.
func exists(err error) bool {
	var re *azcore.ResponseError
	return errors.As(err, &re) && re.StatusCode == http.StatusPreconditionFailed
}

// table makes faults of what Azure answers.
type table struct {
	provider muster.ProviderName
	now      func() time.Time
	slow     driver.Slowdown
}

// fault is the fault of a call that has not succeeded.
func (t *table) fault(c call, err error) *muster.Fault {
	var own *muster.Fault
	if errors.As(err, &own) {
		return &muster.Fault{Kind: own.Kind, Message: c.what, Err: err}
	}
	var unauthorized interface{ NonRetriable() }
	var re *azcore.ResponseError
	switch {
	case errors.As(err, &re):
		return t.refused(c, re)
	case ended(err) && c.sent != nil:
		return c.sent.Fault(c.what, c.effect, err)
	case errors.As(err, &unauthorized) && strings.Contains(err.Error(), "redential"):
		return &muster.Fault{Kind: muster.FaultAuth, Scope: t.scope(account, c.about),
			Message: c.what + ": no token: see credentials in docs/clouds/azure.md", Err: err}
	case c.sent == nil:
		return &muster.Fault{Kind: c.effect.Unclear(), Message: c.what, Err: err}
	}
	return c.sent.Fault(c.what, c.effect, err)
}

func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// refused is the fault of a call, or of an operation, that Azure answered with an error.
func (t *table) refused(c call, re *azcore.ResponseError) *muster.Fault {
	var header http.Header
	var all []refusal
	if re.RawResponse != nil {
		header = re.RawResponse.Header
		if body, err := runtime.Payload(re.RawResponse); err == nil {
			all = codesIn(body)
		}
	}
	if len(all) == 0 {
		// A body without a code is not Azure's, a proxy's perhaps, and tells nothing about what happened.
		f := &muster.Fault{Kind: driver.StatusKind(re.StatusCode, c.effect), Message: c.what + ": status " + strconv.Itoa(re.StatusCode) + " with a body that is not Azure's"}
		switch f.Kind {
		case muster.FaultRateLimited:
			f.Scope, f.After = t.scope(account, c.about), driver.RetryAfter(header, t.now(), throttledAfter)
		case muster.FaultNotFound:
			if c.effect == driver.Makes {
				f.Kind = muster.FaultAmbiguous
			}
		}
		return f
	}
	f := t.judge(c, re.StatusCode, all)
	if f.Kind == muster.FaultRateLimited {
		sent := time.Now()
		if c.sent != nil {
			sent = c.sent.Began
		}
		f.After = driver.RetryAfter(header, t.now(), max(throttledAfter, t.slow.Refused(sent)))
	}
	return f
}

// judge is the table of errors: what codes mean, the outermost first. A status of 0 is that of an
// operation, or of a machine that has failed.
func (t *table) judge(c call, status int, all []refusal) *muster.Fault {
	why := all[len(all)-1]
	why.message = muster.Truncate(why.message, maxMessage)
	f := &muster.Fault{Kind: c.effect.Unclear(), Message: c.what, Err: &why}
	r, at := ruleOf(all)
	switch {
	case r == nil:
		if f.Kind = driver.StatusKind(status, c.effect); f.Kind == muster.FaultAuth {
			f.Scope = t.scope(account, c.about)
		}
		if f.Kind == muster.FaultNotFound && c.effect == driver.Makes {
			f.Kind = muster.FaultInvalid // what the body names does not exist
		}
		return f
	case r.kind != "":
		f.Kind, f.Scope = r.kind, t.scope(r.blocks, c.about)
	}
	why = all[at]
	why.message = muster.Truncate(why.message, maxMessage)
	if r.hint != "" {
		why.message = strings.TrimSuffix(why.message, ".") + ": " + r.hint
	}
	switch f.Kind {
	case muster.FaultCapacity:
		f.After = capacityAfter
		if why.code == "SkuNotAvailable" && c.about.market != muster.Spot {
			f.After = restrictedAfter // a restriction of the subscription more often than a shortage
		}
	case muster.FaultQuota:
		t.narrow(f, c.about, all[at].message)
	case muster.FaultInvalid:
		f.Field = fieldOf(why.code, all[at].message)
	}
	return f
}

// ruleOf is the first rule that fits one of the codes, and which code that is.
func ruleOf(all []refusal) (*rule, int) {
	for i := range rules {
		for at := len(all) - 1; at >= 0; at-- {
			for code := range strings.FieldsSeq(rules[i].codes) {
				if strings.EqualFold(code, all[at].code) || code == "QuotaExceeded" && isQuota(&all[at]) {
					return &rules[i], at
				}
			}
		}
	}
	return nil, 0
}

// isQuota reports whether an operation that is not allowed is one for want of a quota.
func isQuota(r *refusal) bool {
	return r.code == "OperationNotAllowed" && strings.Contains(strings.ToLower(r.message), "quota")
}

var limitText = regexp.MustCompile(`(?i)current limit: *(\d+)`)

// narrow finds in Azure's text whose quota it is.
func (t *table) narrow(f *muster.Fault, a about, message string) {
	text := strings.ToLower(strings.ReplaceAll(message, " ", ""))
	switch {
	case f.Scope.Family == "":
		return
	case strings.Contains(text, "lowprioritycores"):
		f.Scope.Family = spotFamily
	case strings.Contains(text, "regionalcores"):
		// Cores of spot machines have a quota of their own.
		f.Scope = muster.Scope{Provider: t.provider, Market: muster.OnDemand}
		if a.market == muster.Spot {
			f.Scope = t.scope(account, a)
		}
	}
	if m := limitText.FindStringSubmatch(message); m != nil && m[1] == "0" {
		f.After = restrictedAfter // this account has none, and will not have some soon
	}
}

func (t *table) scope(b blocks, a about) muster.Scope {
	s := muster.Scope{Provider: t.provider}
	switch b {
	case nothing:
		return muster.Scope{}
	case offeringHere:
		s.Offering, s.Zone, s.Market = a.offering, a.zone, a.market
	case bothMarkets:
		s.Offering, s.Zone = a.offering, a.zone
	case offeringOnly:
		s.Offering = a.offering
	case quotaFamily:
		s.Family = a.family
	case account:
	}
	return s
}

// wireError is an error as Azure writes it.
type wireError struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Details []wireError     `json:"details"`
	Inner   json.RawMessage `json:"innererror"`
}

// codesIn are the codes of a body, the outermost first: of {"error": …}, as operations have it too, or
// of the error alone.
func codesIn(body []byte) []refusal {
	var w struct {
		Error *wireError `json:"error"`
		wireError
	}
	if json.Unmarshal(body, &w) != nil {
		return nil
	}
	top := &w.wireError
	if w.Error != nil {
		top = w.Error
	}
	var out []refusal
	top.collect(&out, 0)
	return out
}

func (w *wireError) collect(out *[]refusal, depth int) {
	if w.Code == "" || depth > 4 {
		return
	}
	*out = append(*out, refusal{w.Code, w.Message})
	for i := range w.Details {
		w.Details[i].collect(out, depth+1)
	}
	// The text of some errors is another error in JSON.
	if strings.HasPrefix(strings.TrimSpace(w.Message), "{") {
		*out = append(*out, codesIn([]byte(w.Message))...)
	}
}

// fieldOf is the field of the configuration that an invalid call was about.
func fieldOf(code, message string) string {
	text := strings.ToLower(code + " " + message)
	for _, f := range []struct{ words, field string }{
		{"resourcegroup", "resource_group"}, {"image", "image"}, {"marketplace", "image"}, {"subnet", "subnet"}, {"networksecuritygroup", "security_groups"}, {"customdata", "user_data_file"},
		{"vmsize", "types"}, {"vm size", "types"}, {"osdisk", "disk"}, {"disk size", "disk"}, {"zone", "zones"}, {"ssh", "ssh"}, {"tag", "labels"},
	} {
		if strings.Contains(text, f.words) {
			return f.field
		}
	}
	return ""
}
