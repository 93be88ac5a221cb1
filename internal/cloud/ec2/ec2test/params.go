package ec2test

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// known are the parameters of each action; N stands for a number.
var known = map[string][]string{
	"RunInstances": {"ImageId", "InstanceType", "MinCount", "MaxCount", "ClientToken", "UserData", "SubnetId", "SecurityGroupId.N", "DryRun", "KeyName",
		"NetworkInterface.N.DeviceIndex", "NetworkInterface.N.SubnetId", "NetworkInterface.N.SecurityGroupId.N",
		"NetworkInterface.N.AssociatePublicIpAddress", "NetworkInterface.N.DeleteOnTermination",
		"TagSpecification.N.ResourceType", "TagSpecification.N.Tag.N.Key", "TagSpecification.N.Tag.N.Value",
		"BlockDeviceMapping.N.DeviceName", "BlockDeviceMapping.N.Ebs.VolumeSize", "BlockDeviceMapping.N.Ebs.VolumeType",
		"BlockDeviceMapping.N.Ebs.DeleteOnTermination", "BlockDeviceMapping.N.Ebs.Encrypted", "BlockDeviceMapping.N.Ebs.Iops",
		"BlockDeviceMapping.N.Ebs.Throughput", "BlockDeviceMapping.N.Ebs.KmsKeyId", "BlockDeviceMapping.N.Ebs.SnapshotId",
		"InstanceInitiatedShutdownBehavior", "InstanceMarketOptions.MarketType", "InstanceMarketOptions.SpotOptions.SpotInstanceType",
		"InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "InstanceMarketOptions.SpotOptions.MaxPrice",
		"MetadataOptions.HttpTokens", "MetadataOptions.HttpPutResponseHopLimit", "MetadataOptions.HttpEndpoint", "MetadataOptions.InstanceMetadataTags",
		"IamInstanceProfile.Arn", "IamInstanceProfile.Name", "HibernationOptions.Configured", "Placement.AvailabilityZone", "Placement.Tenancy", "Placement.GroupName"},
	"DescribeInstances":             {"InstanceId.N", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"TerminateInstances":            {"InstanceId.N", "SkipOsShutdown", "Force", "DryRun"},
	"StopInstances":                 {"InstanceId.N", "SkipOsShutdown", "Hibernate", "Force", "DryRun"},
	"StartInstances":                {"InstanceId.N", "DryRun"},
	"CreateTags":                    {"ResourceId.N", "Tag.N.Key", "Tag.N.Value", "DryRun"},
	"DescribeInstanceTypes":         {"InstanceType.N", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"DescribeInstanceTypeOfferings": {"LocationType", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"DescribeSubnets":               {"SubnetId.N", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"DescribeImages":                {"ImageId.N", "Owner.N", "ExecutableBy.N", filterName, filterValue, "IncludeDeprecated", "MaxResults", "NextToken", "DryRun"},
	"DescribeSpotPriceHistory": {"StartTime", "EndTime", "ProductDescription.N", "InstanceType.N", "AvailabilityZone", filterName, filterValue,
		"MaxResults", "NextToken", "DryRun"},
	"DescribeSpotInstanceRequests": {"SpotInstanceRequestId.N", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"GetConsoleOutput":             {"InstanceId", "Latest", "DryRun"},
	"DescribeInstanceStatus":       {"InstanceId.N", "IncludeAllInstances", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"DescribeVolumes":              {"VolumeId.N", filterName, filterValue, "MaxResults", "NextToken", "DryRun"},
	"DeleteVolume":                 {"VolumeId", "DryRun"},
}

// These are in nearly every list.
const filterName, filterValue = "Filter.N.Name", "Filter.N.Value.N"

// EC2 counts from 1; an index of 0 is a parameter that it does not know.
var numeric = regexp.MustCompile(`\.[1-9][0-9]*(\.|$)`)

// generic is a parameter's name with N for each number.
func generic(name string) string {
	for numeric.MatchString(name) {
		name = numeric.ReplaceAllString(name, ".N$1")
	}
	return name
}

// checkForm refuses what the action does not know.
func (c *call) checkForm() *failure {
	names, ok := known[c.action]
	if !ok {
		return fail(400, "InvalidAction", "The action %s is not valid for this web service.", c.action)
	}
	if v := c.form.Get("Version"); v != "2016-11-15" {
		return fail(400, "InvalidParameterValue", "The version %q is not valid", v)
	}
	// EC2 ignores some parameters that it does not know, and a misspelt tag is then an instance without
	// owner. Here each is an error.
	for _, name := range slices.Sorted(maps.Keys(c.form)) {
		if name != "Action" && name != "Version" && !slices.Contains(names, generic(name)) {
			return fail(400, "UnknownParameter", "The parameter %s is not recognized", name)
		}
		if len(c.form[name]) != 1 {
			return fail(400, "InvalidParameterCombination", "The parameter %s is there twice", name)
		}
	}
	if v := c.form.Get("DryRun"); v != "" && v != "true" && v != "false" {
		return fail(400, "InvalidParameterValue", "Value (%s) for parameter DryRun is invalid.", v)
	}
	return nil
}

// values are those of a list, NAME.1, NAME.2 and so on.
func (c *call) values(name string) []string {
	var out []string
	for n := 1; c.form.Has(name + "." + itoa(n)); n++ {
		out = append(out, c.form.Get(name+"."+itoa(n)))
	}
	return out
}

// filter is one filter: a name, and patterns of which one must fit.
type filter struct {
	name   string
	values []string
}

// maxValues is the most values of one filter.
const maxValues = 200

// filters reads them up to the first number that is left out, as EC2 does.
func (c *call) filters() ([]filter, *failure) {
	var out []filter
	for n := 1; c.form.Has("Filter." + itoa(n) + ".Name"); n++ {
		f := filter{c.form.Get("Filter." + itoa(n) + ".Name"), c.values("Filter." + itoa(n) + ".Value")}
		// A filter without values would select everything at one cloud and nothing at another.
		if len(f.values) == 0 || len(f.values) > maxValues {
			return nil, fail(400, "FilterLimitExceeded", "Filter %s has %d values; it may have 1 to %d", f.name, len(f.values), maxValues)
		}
		out = append(out, f)
	}
	return out, nil
}

// fits reports whether each filter has a value that fits one of the object's own. of returns those
// of a filter, and whether there is such a filter at all.
func fits(filters []filter, of func(name string) (values []string, known bool)) (bool, *failure) {
	all := true
	for _, f := range filters {
		own, ok := of(f.name)
		if !ok {
			return false, fail(400, "InvalidParameterValue", "The filter '%s' is invalid", f.name)
		}
		all = all && slices.ContainsFunc(own, func(v string) bool {
			return slices.ContainsFunc(f.values, func(p string) bool { return match(p, v) })
		})
	}
	return all, nil
}

// match is EC2's: * is any text, ? one character, and a backslash takes the next one as it is.
func match(pattern, text string) bool {
	for pattern != "" {
		switch p := pattern[0]; {
		case p == '*':
			for i := 0; i <= len(text); i++ {
				if match(pattern[1:], text[i:]) {
					return true
				}
			}
			return false
		case text == "":
			return false
		case p == '\\' && len(pattern) > 1:
			if pattern[1] != text[0] {
				return false
			}
			pattern = pattern[1:]
		case p != '?' && p != text[0]:
			return false
		}
		pattern, text = pattern[1:], text[1:]
	}
	return text == ""
}

// size is how many results a page may have.
func (c *call) size(least, most int) (int, *failure) {
	v := c.form.Get("MaxResults")
	// Without a size EC2 sends as much as it likes; the largest page is what costs a driver most memory.
	if v == "" {
		return most, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fail(400, "InvalidParameterValue", "Value ( %s ) for parameter maxResults is invalid. Expecting a value between %d and %d.", v, least, most)
	}
	return n, nil
}

// query is what a page token must be used with: all parameters but the token and the page's size.
func (c *call) query() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c.form)) {
		if k != "NextToken" && k != "MaxResults" {
			b.WriteString(k + "=" + c.form.Get(k) + "&")
		}
	}
	return b.String()
}
