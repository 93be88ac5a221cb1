package ec2

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// Codes that the driver acts on itself.
const (
	codeSubnetFull     = "InsufficientFreeAddressesInSubnet"
	codeNotFound       = "InvalidInstanceID.NotFound"
	codeMalformed      = "InvalidInstanceID.Malformed"
	codeDryRun         = "DryRunOperation"
	codeNotPermitted   = "OperationNotPermitted"
	codeUnsupported    = "Unsupported"
	codeVolumeNotFound = "InvalidVolume.NotFound"
)

// unsupportedFor is how long a zone is taken not to have a type after it said so.
const unsupportedFor = 24 * time.Hour

// blocks says which part of a call's offering a refusal is about.
type blocks int

const (
	nothing blocks = iota
	offeringHere
	offeringInZone
	zoneOnly
	offeringOnly
	spotOnly
	familyOnly
	spotFamily
	account
)

// rule is one row of the table of errors. A pattern may end in *.
type rule struct {
	codes  string
	kind   muster.FaultKind
	blocks blocks
	hint   string
}

// rules are EC2's codes, as far as they are known, and what they mean. The first that fits counts.
// The status says little: a lack of capacity is a 500, throttling is a 503.
var rules = []rule{
	{"InsufficientInstanceCapacity UnfulfillableCapacity InsufficientVolumeCapacity InsufficientReservedInstanceCapacity InsufficientHostCapacity InsufficientCapacity",
		muster.FaultCapacity, offeringHere, ""},
	{codeSubnetFull + " InsufficientAddressCapacity", muster.FaultCapacity, zoneOnly, ""},
	{codeUnsupported, muster.FaultCapacity, offeringInZone, ""},
	{"SpotMaxPriceTooLow", muster.FaultCapacity, offeringHere, ""},
	{"MaxSpotInstanceCountExceeded", muster.FaultQuota, spotFamily, "ask for more in the Service Quotas console"},
	{"VcpuLimitExceeded InstanceLimitExceeded", muster.FaultQuota, familyOnly, "ask for more in the Service Quotas console"},
	{"RequestLimitExceeded Throttling ThrottlingException ThrottledException EC2ThrottledException RequestThrottled TooManyRequestsException", muster.FaultRateLimited, account, ""},
	{"*LimitExceeded", muster.FaultQuota, account, "ask for more in the Service Quotas console"},
	{"AuthFailure.ServiceLinkedRoleCreationNotPermitted", muster.FaultAuth, spotOnly, "run aws iam create-service-linked-role --aws-service-name spot.amazonaws.com once in this account"},
	{"RequestExpired RequestTimeTooSkewed RequestInTheFuture", muster.FaultAuth, account, "the clock of this server differs from that of AWS by more than 5 minutes"},
	{"UnauthorizedOperation AccessDenied AccessDeniedException", muster.FaultAuth, account, "see the policy in docs/clouds/ec2.md; aws sts decode-authorization-message explains an encoded text"},
	{"AuthFailure* InvalidClientTokenId SignatureDoesNotMatch MissingAuthenticationToken ExpiredToken ExpiredTokenException UnrecognizedClientException OptInRequired Blocked PendingVerification AccountDisabled InvalidSignatureException IncompleteSignature",
		muster.FaultAuth, account, ""},
	{"InvalidSubnetID*", muster.FaultInvalid, offeringOnly, "aws ec2 describe-subnets lists those of the region"},
	{"InvalidGroup* InvalidSecurityGroupID*", muster.FaultInvalid, offeringOnly, "aws ec2 describe-security-groups lists those of the region"},
	// The image is resolved again before the next launch.
	{"InvalidAMIID*", muster.FaultInvalid, nothing, ""},
	{"InvalidParameterValue InvalidParameter InvalidParameterCombination MissingParameter UnknownParameter TagPolicyViolation VPCIdNotSpecified UnsupportedOperation OperationNotPermitted MissingInput MissingAction InvalidAction",
		muster.FaultInvalid, offeringOnly, ""},
	{codeNotFound + " " + codeMalformed + " " + codeVolumeNotFound, muster.FaultNotFound, nothing, ""},
	{"IdempotentParameterMismatch", muster.FaultAmbiguous, nothing, "the same token was sent before with other parameters"},
	{"IdempotentInstanceTerminated", muster.FaultTransient, nothing, "the token is used up: its instance has ended"},
	{"ConcurrentTagAccess IncorrectInstanceState IncorrectState InvalidPaginationToken InvalidNextToken", muster.FaultTransient, nothing, ""},
	{"InternalError InternalFailure ServerInternal Unavailable ServiceUnavailable InternalServerError", "", nothing, ""},
	{"Invalid*", muster.FaultInvalid, offeringOnly, ""},
}

func (r *rule) fits(code string) bool {
	for c := range strings.FieldsSeq(r.codes) {
		if before, ok := strings.CutSuffix(c, "*"); ok && strings.HasPrefix(code, before) || c == code {
			return true
		}
		if after, ok := strings.CutPrefix(c, "*"); ok && strings.HasSuffix(code, after) {
			return true
		}
	}
	return false
}

// refused is the fault of a call that EC2 answered with an error. Without a code the body was not
// EC2's, a proxy's perhaps, and tells nothing about what has happened.
func (c *client) refused(q call, status int, code, message string) *muster.Fault {
	why := &refusal{code: code, message: muster.Truncate(message, maxMessage)}
	f := &muster.Fault{Kind: q.effect.Unclear(), Message: c.named(q.action), Err: why}
	if code == "" {
		f.Message, f.Err = fmt.Sprintf("%s: status %d with a body that is not AWS's", c.named(q.action), status), nil
		return f
	}
	found := false
	for i := range rules {
		if r := &rules[i]; r.fits(code) {
			found = true
			if r.kind != "" {
				f.Kind = r.kind
			}
			f.Scope = c.scope(r.blocks, q.about)
			if r.hint != "" {
				why.message = strings.TrimSuffix(why.message, ".") + ": " + r.hint
			}
			break
		}
	}
	if !found {
		f.Kind = driver.StatusKind(status, q.effect)
		if f.Kind == muster.FaultAuth {
			f.Scope = c.scope(account, q.about)
		}
	}
	switch f.Kind {
	case muster.FaultRateLimited:
		f.After = c.slowdown(q.action).Refused(q.sent)
	case muster.FaultAuth:
		// Credentials that were rotated are read again for the next call.
		if cache, ok := c.credentials.(interface{ Invalidate() }); ok {
			cache.Invalidate()
		}
	case muster.FaultInvalid:
		f.Field = fieldOf(code, message)
	case muster.FaultCapacity:
		if code == codeUnsupported {
			f.After = unsupportedFor
		}
	}
	return f
}

func (c *client) scope(b blocks, a about) muster.Scope {
	s := muster.Scope{Provider: c.provider}
	switch b {
	case nothing:
		return muster.Scope{}
	case offeringHere:
		s.Offering, s.Zone, s.Market = a.offering, a.zone, a.market
	case offeringInZone:
		s.Offering, s.Zone = a.offering, a.zone
	case zoneOnly:
		s.Zone = a.zone
	case offeringOnly:
		s.Offering = a.offering
	case spotOnly:
		s.Market = muster.Spot
	case familyOnly:
		s.Family = familyOf(string(a.offering), a.market)
	case spotFamily:
		s.Family = familyOf(string(a.offering), muster.Spot)
	case account:
	}
	return s
}

// fieldOf is the field of the configuration that an invalid call was about.
func fieldOf(code, message string) string {
	text := code + " " + message
	for _, f := range []struct{ words, field string }{
		{"AMI", "image"}, {"Subnet", "subnets"}, {"subnet", "subnets"}, {"Group", "security_groups"}, {"security group", "security_groups"},
		{"IAM Instance Profile", "instance_profile"}, {"iamInstanceProfile", "instance_profile"}, {"UserData", "user_data_file"}, {"user data", "user_data_file"},
		{"BlockDevice", "disk"}, {"olume", "disk"}, {"nstance type", "types"}, {"InstanceType", "types"}, {"tag", "labels"}, {"Tag", "labels"},
	} {
		if strings.Contains(text, f.words) {
			return f.field
		}
	}
	return ""
}

var idInText = regexp.MustCompile(`i-[0-9a-fA-F]+`)

// failedBy is why EC2 ended an instance by itself that it had accepted; nil if it was asked to, or
// if the instance shut itself down, or if the cloud took a spot instance that ran.
func (p *Provider) failedBy(code, message string, ran bool, a about) *muster.Fault {
	side, rest, _ := strings.Cut(code, ".")
	if side != "Server" && side != "Client" || rest == "" {
		return nil
	}
	f := &muster.Fault{Kind: muster.FaultTransient, Message: "EC2 ended the instance", Err: &refusal{code: code, message: muster.Truncate(message, maxMessage)}}
	switch rest {
	case "InstanceInitiatedShutdown", "UserInitiatedShutdown", "UserInitiatedHibernate", "SpotInstanceShutdown", "ScheduledStop":
		return nil
	case "SpotInstanceTermination":
		if ran {
			return nil
		}
		f.Kind, f.Scope = muster.FaultCapacity, p.api.scope(offeringHere, a)
	case "InternalError":
		if side == "Client" {
			// Mostly a key of an encrypted disk that the caller may not use.
			f.Kind, f.Field, f.Scope = muster.FaultInvalid, "image", p.api.scope(offeringOnly, a)
		}
	default:
		for i := range rules {
			if r := &rules[i]; r.fits(rest) && r.kind != "" {
				f.Kind, f.Scope = r.kind, p.api.scope(r.blocks, a)
				break
			}
		}
	}
	return f
}
