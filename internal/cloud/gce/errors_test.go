package gce

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/gce/gcetest"
)

// TestErrors: a reason is judged alike in the answer to a call and in the operation that a call began.
func TestErrors(t *testing.T) {
	account := muster.Scope{Provider: "g"}
	here := muster.Scope{Provider: "g", Offering: "n2-standard-2", Zone: "europe-west1-b", Market: muster.OnDemand}
	const operation, destroy, read = "operation", "instances.delete", "instances.aggregatedList"
	var rows []cloudtest.ErrorRow
	add := func(call string, status int, reasons string, kind muster.FaultKind, scope muster.Scope) {
		for r := range strings.FieldsSeq(reasons) {
			rows = append(rows, cloudtest.ErrorRow{Name: r + " " + call + " " + strconv.Itoa(status), Call: call, Status: status, Body: r, Kind: kind, Scope: scope})
		}
	}
	for _, call := range []string{"", operation} {
		add(call, 503, "ZONE_RESOURCE_POOL_EXHAUSTED ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS RESOURCE_POOL_EXHAUSTED INSUFFICIENT_CAPACITY", muster.FaultCapacity, here)
		add(call, 503, "IP_SPACE_EXHAUSTED IP_SPACE_EXHAUSTED_WITH_DETAILS", muster.FaultCapacity, muster.Scope{Provider: "g", Zone: here.Zone})
		add(call, 503, "PERMISSIONS_ERROR", muster.FaultAuth, muster.Scope{})
		add(call, 503, "UNSUPPORTED_OPERATION CONDITION_NOT_MET RESOURCE_NOT_FOUND", muster.FaultInvalid, muster.Scope{})
		add(call, 503, "internalError something_new", muster.FaultAmbiguous, muster.Scope{})
		add(call, 503, "rateLimitExceeded", muster.FaultRateLimited, account)
	}
	add("", 403, "quotaExceeded", muster.FaultQuota, account)
	add(operation, 403, "QUOTA_EXCEEDED", muster.FaultQuota, muster.Scope{Provider: "g", Family: "europe-west1/N2_CPUS"})
	add("", 403, "rateLimitExceeded userRateLimitExceeded", muster.FaultRateLimited, account)
	add("", 429, "new", muster.FaultRateLimited, account)
	add("", 403, "forbidden required accessNotConfigured", muster.FaultAuth, muster.Scope{})
	add("", 401, "new", muster.FaultAuth, muster.Scope{})
	add("", 400, "invalid badRequest new", muster.FaultInvalid, muster.Scope{})
	add("", 404, "notFound", muster.FaultInvalid, muster.Scope{})
	add("", 400, "resourceNotReady", muster.FaultTransient, muster.Scope{})
	add("", 412, "conditionNotMet", muster.FaultTransient, muster.Scope{})
	add("", 503, "backendError", muster.FaultAmbiguous, muster.Scope{})
	add(read, 503, "backendError", muster.FaultTransient, muster.Scope{})
	add(destroy, 500, "internalError", muster.FaultTransient, muster.Scope{})
	add(destroy, 400, "resourceNotReady", muster.FaultTransient, muster.Scope{})
	rows = append(rows, cloudtest.ErrorRow{Name: "notFound on destroy", Call: destroy, Status: 404, Body: "notFound", Succeeds: true})
	cloudtest.Errors(t, rows, func(t *testing.T, row cloudtest.ErrorRow) error {
		script := "call: refuse " + strconv.Itoa(row.Status) + " " + row.Body + " once method="
		switch row.Call {
		case "":
			script += "instances.insert"
		case operation:
			script = "operation: fails " + row.Body + " once metric=compute.googleapis.com/n2_cpus"
		default:
			script += row.Call
		}
		p := open(t, gcetest.New(t, gcetest.Options{Script: script}), "o", nil)
		if row.Call == read {
			_, err := p.List(t.Context(), "")
			return err
		}
		got := make1(t, p, intent("t"))
		if row.Call == destroy {
			return p.Destroy(t.Context(), []muster.InstanceID{got.Instance.ID})[0]
		}
		return got.Err
	})
}

func TestTheNextMinute(t *testing.T) {
	p := &Provider{cfg: Config{Now: func() time.Time { return time.Date(2026, 1, 2, 3, 4, 59, 0, time.UTC) }}}
	if d := p.nextMinute(); d != time.Second {
		t.Errorf("%s", d)
	}
}
