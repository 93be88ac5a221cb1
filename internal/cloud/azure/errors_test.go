package azure

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/azure/azuretest"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
)

// what one code of Azure's stands for, at once and in an operation.
type codeRow struct {
	name, code, message string
	status              int
	// spot: of a create of a spot machine.
	spot  bool
	kind  muster.FaultKind
	scope muster.Scope
	field string
	after time.Duration
	// later is the kind in an operation, if another one.
	later muster.FaultKind
}

const quotaText = "Operation could not be completed as it results in exceeding approved %s quota. Additional details - Deployment Model: Resource Manager, Location: westeurope, Current Limit: %d, Current Usage: 0, Additional Required: 2."

// codeRows is the table of errors, one row for each code.
func codeRows() []codeRow {
	account := muster.Scope{Provider: "az"}
	offering := muster.Scope{Provider: "az", Offering: "Standard_D2s_v5"}
	place := muster.Scope{Provider: "az", Offering: "Standard_D2s_v5", Zone: azuretest.Location}
	here, spotHere := place, place
	here.Market, spotHere.Market = muster.OnDemand, muster.Spot
	family := func(f string) muster.Scope { return muster.Scope{Provider: "az", Family: f} }
	rows := []codeRow{
		{name: "SkuNotAvailable on demand", code: "SkuNotAvailable", status: 409, kind: muster.FaultCapacity, scope: here, after: restrictedAfter},
		{name: "SkuNotAvailable spot", code: "SkuNotAvailable", status: 409, spot: true, kind: muster.FaultCapacity, scope: spotHere, after: capacityAfter},
		{name: "ZonalAllocationFailed", status: 409, kind: muster.FaultCapacity, scope: place, after: capacityAfter},
		{name: "AllocationFailed", status: 409, kind: muster.FaultCapacity, scope: place, after: capacityAfter},
		{name: "AllocationFailed spot", code: "AllocationFailed", status: 409, spot: true, kind: muster.FaultCapacity, scope: place, after: capacityAfter},
		{name: "OverconstrainedZonalAllocationRequest", status: 409, kind: muster.FaultCapacity, scope: here, after: capacityAfter},
		{name: "OverconstrainedAllocationRequest", status: 409, spot: true, kind: muster.FaultCapacity, scope: spotHere, after: capacityAfter},
		{name: "family quota", code: "OperationNotAllowed", message: fmt.Sprintf(quotaText, "standardDSv5Family Cores", 10), status: 409, kind: muster.FaultQuota, scope: family("standardDSv5Family")},
		{name: "QuotaExceeded", message: fmt.Sprintf(quotaText, "standardDSv5Family Cores", 10), status: 409, kind: muster.FaultQuota, scope: family("standardDSv5Family")},
		{name: "quota of nothing", code: "QuotaExceeded", message: fmt.Sprintf(quotaText, "standardDSv5Family Cores", 0), status: 409, kind: muster.FaultQuota, scope: family("standardDSv5Family"), after: restrictedAfter},
		{name: "spot quota", code: "OperationNotAllowed", message: fmt.Sprintf(quotaText, "LowPriorityCores", 3), status: 409, spot: true, kind: muster.FaultQuota, scope: family(spotFamily)},
		{name: "regional quota", code: "OperationNotAllowed", message: fmt.Sprintf(quotaText, "Total Regional Cores", 10), status: 409, kind: muster.FaultQuota, scope: muster.Scope{Provider: "az", Market: muster.OnDemand}},
		{name: "regional quota, spot", code: "OperationNotAllowed", message: fmt.Sprintf(quotaText, "Total Regional Cores", 10), status: 409, spot: true, kind: muster.FaultQuota, scope: account},
		{name: "SubnetIsFull", status: 400, kind: muster.FaultQuota, scope: account},
		{name: "PublicIPCountLimitReached", status: 400, kind: muster.FaultQuota, scope: account},
		{name: "TooManyRequests", status: 429, kind: muster.FaultRateLimited, scope: account, after: throttledAfter},
		{name: "RetryableError", status: 429, kind: muster.FaultRateLimited, scope: account, after: throttledAfter},
		{name: "ResourceGroupNotFound", status: 404, kind: muster.FaultInvalid, scope: account, field: "resource_group"},
		{name: "ImageNotFound", status: 404, kind: muster.FaultInvalid, scope: offering, field: "image"},
		{name: "MarketplacePurchaseEligibilityFailed", status: 400, kind: muster.FaultInvalid, scope: offering, field: "image"},
		{name: "a size that is none", code: "InvalidParameter", message: "The value Standard_X provided for the VM size is not valid.", status: 400, kind: muster.FaultInvalid, scope: offering, field: "types"},
		{name: "ScopeLocked", status: 409, kind: muster.FaultInvalid},
		{name: "NotFound of what a create names", code: "NotFound", status: 404, kind: muster.FaultNotFound, later: muster.FaultTransient},
		{name: "ResourceNotFound", status: 404, kind: muster.FaultNotFound, later: muster.FaultTransient},
		{name: "a new code", code: "SomethingNew", status: 400, kind: muster.FaultAmbiguous, later: muster.FaultTransient},
	}
	for kind, codes := range map[muster.FaultKind]string{
		muster.FaultAuth:      "AuthorizationFailed AuthenticationFailed LinkedAuthorizationFailed SubscriptionNotRegistered MissingSubscriptionRegistration DisallowedOperation InvalidAuthenticationToken",
		muster.FaultInvalid:   "RequestDisallowedByPolicy InvalidParameter PropertyChangeNotAllowed BadRequest",
		muster.FaultTransient: "NicReservedForAnotherVm Conflict AnotherOperationInProgress OperationPreempted OSProvisioningTimedOut OSProvisioningClientError",
		muster.FaultAmbiguous: "InternalServerError GatewayTimeout InternalExecutionError",
	} {
		for code := range strings.FieldsSeq(codes) {
			row := codeRow{name: code, status: 409, kind: kind}
			switch kind {
			case muster.FaultAuth:
				row.scope, row.status = account, 403
			case muster.FaultInvalid:
				row.scope = offering
			case muster.FaultAmbiguous:
				// A machine whose operation has failed exists: nothing about it is ambiguous.
				row.status, row.later = 500, muster.FaultTransient
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *codeRow) body() string {
	code := r.code
	if code == "" {
		code = r.name
	}
	return fmt.Sprintf(`{"code":%q,"message":%q}`, code, r.message)
}

// TestErrors checks each code in the answer to a create, by itself and nested, and in its operation.
func TestErrors(t *testing.T) {
	var rows []cloudtest.ErrorRow
	spot := map[string]bool{}
	for _, r := range codeRows() {
		// Azure wraps many refusals into another one.
		nested := fmt.Sprintf(`{"code":"Conflict","message":"See inner errors for details.","details":[%s]}`, r.body())
		for how, body := range map[string]string{"": r.body(), " nested": nested} {
			row := cloudtest.ErrorRow{Name: r.name + how, Status: r.status, Body: `{"error":` + body + `}`, Kind: r.kind, Scope: r.scope, Field: r.field, After: r.after}
			if how != "" && (r.code == "SomethingNew" || r.kind == muster.FaultAmbiguous) && r.code != "" {
				row.Kind = muster.FaultTransient // of the outer code
			}
			spot[row.Name] = r.spot
			rows = append(rows, row)
			row.Name, row.Call, row.Body = row.Name+" in the operation", azuretest.Poll, body
			if r.kind != muster.FaultRateLimited && r.later != "" {
				row.Kind = r.later
			}
			spot[row.Name] = r.spot
			rows = append(rows, row)
		}
	}
	const destroy, read = azuretest.Delete, azuretest.List
	rows = append(rows,
		cloudtest.ErrorRow{Name: "Retry-After in seconds", Status: 429, Header: http.Header{"Retry-After": {"7"}}, Body: coded("TooManyRequests", ""), Kind: muster.FaultRateLimited, Scope: muster.Scope{Provider: "az"}, After: 7 * time.Second},
		cloudtest.ErrorRow{Name: "429 of a proxy", Status: 429, Body: "slow down", Kind: muster.FaultRateLimited, Scope: muster.Scope{Provider: "az"}, After: throttledAfter},
		cloudtest.ErrorRow{Name: "HTML of a proxy", Status: 503, Body: "<html>", Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "404 of a proxy", Status: 404, Body: "<html>", Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "a new code with 403", Status: 403, Body: coded("SomethingNew", ""), Kind: muster.FaultAuth, Scope: muster.Scope{Provider: "az"}},
		cloudtest.ErrorRow{Name: "HTML on read", Call: read, Status: 503, Body: "<html>", Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "truncated list", Call: read, Status: 200, Body: `{"value":[`, Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "InternalServerError on read", Call: read, Status: 500, Body: coded("InternalServerError", ""), Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "404 of a list is not empty", Call: read, Status: 404, Body: coded("ResourceNotFound", ""), Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "ResourceNotFound on delete", Call: destroy, Status: 404, Body: coded("ResourceNotFound", ""), Succeeds: true},
		cloudtest.ErrorRow{Name: "204 on delete", Call: destroy, Status: 204, Succeeds: true},
		cloudtest.ErrorRow{Name: "InternalServerError on delete", Call: destroy, Status: 500, Body: coded("InternalServerError", ""), Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "ScopeLocked on delete", Call: destroy, Status: 409, Body: coded("ScopeLocked", ""), Kind: muster.FaultInvalid},
		cloudtest.ErrorRow{Name: "NicReservedForAnotherVm on delete", Call: destroy, Status: 400, Body: coded("NicReservedForAnotherVm", ""), Kind: muster.FaultTransient},
	)
	cloudtest.Errors(t, rows, func(t *testing.T, row cloudtest.ErrorRow) error {
		c := azuretest.New(t, azuretest.Options{OperationTime: time.Millisecond})
		p := started(t, c, "o", func(c *Config) { c.Markets = []muster.Market{muster.OnDemand, muster.Spot} })
		in := intent("t")
		if spot[row.Name] {
			in.Market = muster.Spot
		}
		switch row.Call {
		case azuretest.Poll:
			c.FailOperation(row.Body)
			got := make1(t, p, in)
			if got.Err != nil {
				t.Fatalf("it was accepted: %v", got.Err)
			}
			if got.Instance.Failed == nil {
				return nil
			}
			return got.Instance.Failed
		case destroy:
			got := make1(t, p, in)
			c.Refuse(destroy, row.Status, row.Header, row.Body)
			return p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID})[0]
		case read:
			c.Refuse(read, row.Status, row.Header, row.Body)
			_, err := p.List(t.Context(), "")
			return err
		}
		c.Refuse(azuretest.Create, row.Status, row.Header, row.Body)
		return make1(t, p, in).Err
	})
}
