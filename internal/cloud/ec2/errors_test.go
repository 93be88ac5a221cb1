package ec2

import (
	"context"
	"net/url"
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
)

// One row for each code that EC2 is known to answer, as it comes over the wire.
func TestErrors(t *testing.T) {
	here := muster.Scope{Provider: "aws", Offering: "m7i.large", Zone: "eu-central-1a", Market: muster.Spot}
	zone := muster.Scope{Provider: "aws", Zone: "eu-central-1a"}
	offering := muster.Scope{Provider: "aws", Offering: "m7i.large"}
	account := muster.Scope{Provider: "aws"}
	var none muster.Scope
	var table []cloudtest.ErrorRow
	add := func(call string, status int, kind muster.FaultKind, scope muster.Scope, codes ...string) {
		for _, code := range codes {
			name := code
			if call != "" {
				name = call + " " + code
			}
			table = append(table, cloudtest.ErrorRow{Name: name, Call: call, Status: status, Body: refuse(status, code, "Something about it.").body, Kind: kind, Scope: scope})
		}
	}
	add("", 500, muster.FaultCapacity, here, "InsufficientInstanceCapacity", "InsufficientVolumeCapacity")
	add("", 400, muster.FaultCapacity, here, "UnfulfillableCapacity", "InsufficientReservedInstanceCapacity", "InsufficientHostCapacity", "SpotMaxPriceTooLow")
	add("", 400, muster.FaultCapacity, zone, "InsufficientFreeAddressesInSubnet", "InsufficientAddressCapacity")
	add("", 400, muster.FaultQuota, muster.Scope{Provider: "aws", Family: "standard-spot"}, "MaxSpotInstanceCountExceeded", "VcpuLimitExceeded", "InstanceLimitExceeded")
	add("on demand", 400, muster.FaultQuota, muster.Scope{Provider: "aws", Family: "standard"}, "VcpuLimitExceeded", "InstanceLimitExceeded")
	add("", 400, muster.FaultQuota, account, "VolumeLimitExceeded", "MaxIOPSLimitExceeded", "NetworkInterfaceLimitExceeded")
	add("", 503, muster.FaultRateLimited, account, "RequestLimitExceeded", "Throttling", "EC2ThrottledException")
	add("list", 503, muster.FaultRateLimited, account, "RequestLimitExceeded")
	add("", 403, muster.FaultAuth, account, "AuthFailure", "UnauthorizedOperation", "InvalidClientTokenId", "SignatureDoesNotMatch", "RequestExpired", "MissingAuthenticationToken",
		"OptInRequired", "Blocked", "PendingVerification", "AccountDisabled", "ExpiredToken")
	add("list", 403, muster.FaultAuth, account, "UnauthorizedOperation", "RequestExpired")
	add("", 403, muster.FaultAuth, muster.Scope{Provider: "aws", Market: muster.Spot}, "AuthFailure.ServiceLinkedRoleCreationNotPermitted")
	add("", 400, muster.FaultInvalid, offering, "InvalidParameterValue", "MissingParameter", "UnknownParameter", "TagPolicyViolation", "VPCIdNotSpecified", "UnsupportedOperation", "InvalidBlockDeviceMapping")
	add("", 400, muster.FaultInvalid, none, "InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
	add("", 400, muster.FaultAmbiguous, none, "IdempotentParameterMismatch")
	add("", 400, muster.FaultTransient, none, "IdempotentInstanceTerminated", "ConcurrentTagAccess", "IncorrectState")
	add("tags", 400, muster.FaultTransient, none, "IncorrectInstanceState", "ConcurrentTagAccess")
	add("", 500, muster.FaultAmbiguous, none, "InternalError", "InternalFailure", "ServerInternal")
	add("", 503, muster.FaultAmbiguous, none, "Unavailable", "ServiceUnavailable")
	add("list", 500, muster.FaultTransient, none, "InternalError")
	add("list", 503, muster.FaultTransient, none, "Unavailable")
	add("list", 400, muster.FaultTransient, none, "InvalidPaginationToken", "InvalidNextToken")
	add("destroy", 500, muster.FaultAmbiguous, none, "InternalError")
	add("destroy", 503, muster.FaultRateLimited, account, "RequestLimitExceeded")
	add("destroy", 400, muster.FaultTransient, none, "InvalidInstanceID.NotFound") // made a moment ago
	add("tags", 400, muster.FaultTransient, none, "InvalidInstanceID.NotFound")
	add("", 400, muster.FaultAmbiguous, none, "SomethingNew")
	add("", 403, muster.FaultAuth, account, "SomethingForbidden")
	for i := range table {
		row := &table[i]
		switch row.Name {
		case "RequestLimitExceeded":
			row.After = time.Second
		}
	}
	html := "<html><body><h1>503 Service Unavailable</h1></body></html>"
	table = append(table,
		cloudtest.ErrorRow{Name: "Unsupported", Status: 400, Body: refuse(400, "Unsupported", "Your requested instance type (m7i.large) is not supported in your requested Availability Zone (eu-central-1a).").body,
			Kind: muster.FaultCapacity, Scope: muster.Scope{Provider: "aws", Offering: "m7i.large", Zone: "eu-central-1a"}, After: 24 * time.Hour},
		cloudtest.ErrorRow{Name: "instance profile", Status: 400, Body: refuse(400, "InvalidParameterValue", "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name").body,
			Kind: muster.FaultInvalid, Scope: offering, Field: "instance_profile"},
		cloudtest.ErrorRow{Name: "user data", Status: 400, Body: refuse(400, "InvalidUserData.Malformed", "User data is limited to 16384 bytes").body, Kind: muster.FaultInvalid, Scope: offering, Field: "user_data_file"},
		cloudtest.ErrorRow{Name: "subnet", Status: 400, Body: refuse(400, "InvalidSubnetID.NotFound", "The subnet ID 'subnet-0a' does not exist").body, Kind: muster.FaultInvalid, Scope: offering, Field: "subnets"},
		cloudtest.ErrorRow{Name: "group", Status: 400, Body: refuse(400, "InvalidGroup.NotFound", "The security group 'sg-1' does not exist").body, Kind: muster.FaultInvalid, Scope: offering, Field: "security_groups"},
		cloudtest.ErrorRow{Name: "image", Status: 400, Body: refuse(400, "InvalidAMIID.NotFound", "The image id '[ami-0123]' does not exist").body, Kind: muster.FaultInvalid, Field: "image"},
		cloudtest.ErrorRow{Name: "a proxy's page", Status: 503, Body: html, Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "a proxy's page for a list", Call: "list", Status: 503, Body: html, Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "no body", Status: 500, Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "no body for a list", Call: "list", Status: 500, Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "truncated answer", Status: 200, Body: launched(1, 1).body[:300], Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "truncated list", Call: "list", Status: 200, Body: reservations(instanceXML(id(1), "running", 0), "").body[:300], Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "a page for a launch", Status: 200, Body: "<html/>", Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "an empty launch", Status: 200, Body: ok("RunInstances", "<instancesSet/>").body, Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "a dead instance for a used token", Status: 200, Body: ok("RunInstances", "<instancesSet>"+instanceXML(id(1), "terminated", 0)+"</instancesSet>").body, Kind: muster.FaultTransient},
		cloudtest.ErrorRow{Name: "not in the answer", Call: "destroy", Status: 200, Body: ok("TerminateInstances", "<instancesSet/>").body, Kind: muster.FaultAmbiguous},
		cloudtest.ErrorRow{Name: "no capacity to start", Call: "start", Status: 500, Body: refuse(500, "InsufficientInstanceCapacity", "None.").body, Kind: muster.FaultCapacity,
			Scope: muster.Scope{Provider: "aws", Offering: "m7i.large", Zone: "eu-central-1a", Market: muster.OnDemand}},
	)
	actions := map[string]string{"": "RunInstances", "on demand": "RunInstances", "list": "DescribeInstances", "destroy": actionTerminate, "start": actionStart, "tags": "CreateTags"}
	cloudtest.Errors(t, table, func(t *testing.T, row cloudtest.ErrorRow) error {
		c := newCanned(t)
		c.by["RunInstances"] = func(url.Values) reply { return launched(1, 1) }
		p := c.open(func(c *Config) { c.Markets = []muster.Market{muster.OnDemand, muster.Spot} })
		p.patience = 0
		in := intent("t1")
		answer := func(url.Values) reply { return reply{status: row.Status, body: row.Body, header: row.Header} }
		if row.Call == "" || row.Call == "on demand" {
			if row.Call == "" {
				in.Market = muster.Spot
			}
			c.set("RunInstances", answer)
			return p.Create(t.Context(), []cloud.Intent{in})[0].Err
		}
		made := p.Create(t.Context(), []cloud.Intent{in})[0]
		if made.Err != nil {
			t.Fatal(made.Err)
		}
		c.set(actions[row.Call], answer)
		ids := []muster.InstanceID{made.Instance.ID}
		switch row.Call {
		case "list":
			_, err := p.List(t.Context(), "")
			return err
		case "start":
			return p.Start(t.Context(), ids)[0]
		case "tags":
			return p.SetTags(t.Context(), ids[0], made.Instance.Tags)
		}
		return p.Destroy(t.Context(), ids)[0]
	})
}

func TestThrottlingSlowsDownByAction(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	p.patience = 0
	c.by["RunInstances"] = func(url.Values) reply { return refuse(503, "RequestLimitExceeded", "Request limit exceeded.") }
	after := func() time.Duration {
		f, _ := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0].Err.(*muster.Fault)
		return f.After
	}
	if a, b := after(), after(); a != time.Second || b != 2*time.Second {
		t.Errorf("%s, %s", a, b)
	}
	c.set("RunInstances", func(url.Values) reply { return launched(1, 1) })
	if got := p.Create(t.Context(), []cloud.Intent{intent("t1")})[0]; got.Err != nil {
		t.Fatal(got.Err)
	}
	c.set("RunInstances", func(url.Values) reply { return refuse(503, "RequestLimitExceeded", "Request limit exceeded.") })
	if f, _ := p.Create(t.Context(), []cloud.Intent{intent("t2")})[0].Err.(*muster.Fault); f.After != time.Second {
		t.Errorf("after a success: %s", f.After)
	}
}

// A launch that EC2 refuses for the number of calls is repeated as it was, and for a time only.
func TestThrottledLaunchIsRepeated(t *testing.T) {
	c := newCanned(t)
	p := c.open(nil)
	p.launch.Rate.PerSecond, p.throttle.Least = 1000, time.Millisecond
	left := 3
	c.by["RunInstances"] = func(f url.Values) reply {
		if left--; left >= 0 {
			return refuse(503, "RequestLimitExceeded", "Request limit exceeded.")
		}
		return launched(1, 2)
	}
	for i, got := range p.Create(t.Context(), []cloud.Intent{intent("t1"), intent("t2")}) {
		if got.Err != nil || got.Instance.ID != muster.InstanceID(id(1+i)) {
			t.Errorf("%+v", got)
		}
	}
	calls := c.of("RunInstances")
	if len(calls) != 4 {
		t.Errorf("%d calls", len(calls))
	}
	for _, f := range calls {
		if f.Get("MaxCount") != "2" || f.Get("ClientToken") != calls[0].Get("ClientToken") {
			t.Errorf("repeated as %v", f)
		}
	}
	left, p.patience = 1<<30, 20*time.Millisecond
	if got := p.Create(t.Context(), []cloud.Intent{intent("t3")})[0]; !muster.IsKind(got.Err, muster.FaultRateLimited) {
		t.Errorf("%+v", got)
	}
	// The time of the call ends while it waits for the next try: the refusal was certain, and the try is not made.
	p = c.open(nil)
	p.launch.Rate.PerSecond, p.throttle.Least, p.patience = 1000, time.Hour, 24*time.Hour
	ended, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.by["RunInstances"] = func(url.Values) reply {
		time.AfterFunc(500*time.Millisecond, cancel)
		return refuse(503, "RequestLimitExceeded", "Request limit exceeded.")
	}
	if got := p.Create(ended, []cloud.Intent{intent("t4")})[0]; got.Err == nil || muster.IsKind(got.Err, muster.FaultAmbiguous) {
		t.Errorf("%+v", got)
	}
}
