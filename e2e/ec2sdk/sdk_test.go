// Package ec2sdk runs AWS's own SDK against the stand-in of EC2, so that the stand-in accepts what
// AWS accepts and answers what AWS's own decoders read. It is a module of its own: the SDK takes
// over a minute to compile, and nothing else needs it.
package ec2sdk

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/musterhq/muster/internal/cloud/ec2/ec2test"
)

// open is a stand-in and the SDK's client of it, which repeats nothing.
func open(t *testing.T, script, key string) (*ec2test.Server, *ec2.Client) {
	t.Helper()
	s, err := ec2test.New(ec2test.Config{Script: script})
	if err != nil {
		t.Fatal(err)
	}
	return s, ec2.New(ec2.Options{
		Region: "eu-central-1", BaseEndpoint: aws.String("http://ec2.test"), HTTPClient: &http.Client{Transport: s.Transport()},
		Credentials: credentials.NewStaticCredentialsProvider(key, "secret", ""), Retryer: aws.NopRetryer{},
	})
}

// launch is one as the driver makes it.
func launch(token string) *ec2.RunInstancesInput {
	return &ec2.RunInstancesInput{
		ImageId: aws.String("ami-0123456789abcdef0"), InstanceType: "m7i.large", MinCount: aws.Int32(1), MaxCount: aws.Int32(2),
		ClientToken: aws.String(token), UserData: aws.String("I2Nsb3VkLWNvbmZpZwo="), InstanceInitiatedShutdownBehavior: types.ShutdownBehaviorTerminate,
		MetadataOptions: &types.InstanceMetadataOptionsRequest{HttpTokens: types.HttpTokensStateRequired, HttpPutResponseHopLimit: aws.Int32(1)},
		NetworkInterfaces: []types.InstanceNetworkInterfaceSpecification{{DeviceIndex: aws.Int32(0), SubnetId: aws.String("subnet-0a"), Groups: []string{"sg-0c"},
			AssociatePublicIpAddress: aws.Bool(false), DeleteOnTermination: aws.Bool(true)}},
		BlockDeviceMappings: []types.BlockDeviceMapping{{DeviceName: aws.String("/dev/xvda"), Ebs: &types.EbsBlockDevice{VolumeSize: aws.Int32(50), VolumeType: types.VolumeTypeGp3,
			DeleteOnTermination: aws.Bool(true), Encrypted: aws.Bool(true)}}},
		InstanceMarketOptions: &types.InstanceMarketOptionsRequest{MarketType: types.MarketTypeSpot, SpotOptions: &types.SpotMarketOptions{
			SpotInstanceType: types.SpotInstanceTypeOneTime, InstanceInterruptionBehavior: types.InstanceInterruptionBehaviorTerminate}},
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeInstance, Tags: []types.Tag{{Key: aws.String("muster-owner"), Value: aws.String("c1")}}}},
	}
}

func codeOf(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	return ""
}

// Every call that the driver makes, by the SDK.
func TestCalls(t *testing.T) {
	s, c := open(t, "list: page max=5", "AKIDTEST")
	ctx := t.Context()
	made, err := c.RunInstances(ctx, launch("t1"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(made.Instances); n != 2 || aws.ToInt32(made.Instances[1].AmiLaunchIndex) != 1 || made.Instances[0].InstanceLifecycle != types.InstanceLifecycleTypeSpot ||
		aws.ToString(made.Instances[0].Placement.AvailabilityZone) != "eu-central-1a" || made.Instances[0].LaunchTime == nil || aws.ToString(made.Instances[0].ClientToken) != "t1" {
		t.Errorf("%+v", made.Instances)
	}
	again, err := c.RunInstances(ctx, launch("t1"))
	if err != nil || *again.Instances[0].InstanceId != *made.Instances[0].InstanceId {
		t.Errorf("%v %+v", err, again)
	}
	for k := range 5 {
		if _, err := c.RunInstances(ctx, launch("more-"+string(rune('a'+k)))); err != nil {
			t.Fatal(err)
		}
	}
	var ids []string
	pages := ec2.NewDescribeInstancesPaginator(c, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(1000), Filters: []types.Filter{
		{Name: aws.String("tag:muster-owner"), Values: []string{"c?"}}, {Name: aws.String("instance-state-name"), Values: []string{"pending", "running"}}}})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page.Reservations {
			for _, i := range r.Instances {
				if aws.ToString(i.Tags[0].Value) != "c1" || i.State.Name != types.InstanceStateNameRunning {
					t.Errorf("%+v", i)
				}
				ids = append(ids, *i.InstanceId)
			}
		}
	}
	if len(ids) != 12 {
		t.Errorf("%d instances", len(ids))
	}
	if _, err := c.CreateTags(ctx, &ec2.CreateTagsInput{Resources: ids[:1], Tags: []types.Tag{{Key: aws.String("muster-node"), Value: aws.String("n1")}}}); err != nil {
		t.Error(err)
	}
	requests, err := c.DescribeSpotInstanceRequests(ctx, &ec2.DescribeSpotInstanceRequestsInput{})
	if err != nil || len(requests.SpotInstanceRequests) != 5 || aws.ToString(requests.SpotInstanceRequests[0].Status.Code) != "fulfilled" {
		t.Errorf("%v %+v", err, requests)
	}
	ended, err := c.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	if err != nil || len(ended.TerminatingInstances) != 12 || ended.TerminatingInstances[0].CurrentState.Name != types.InstanceStateNameShuttingDown {
		t.Errorf("%v %+v", err, ended)
	}
	if left := s.Left("c1"); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestCatalogue(t *testing.T) {
	_, c := open(t, "", "AKIDTEST")
	ctx := t.Context()
	kinds, err := c.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{Filters: []types.Filter{{Name: aws.String("instance-type"), Values: []string{"m7i.*"}}}})
	if err != nil || len(kinds.InstanceTypes) != 2 || aws.ToInt64(kinds.InstanceTypes[0].MemoryInfo.SizeInMiB) != 8192 || aws.ToInt32(kinds.InstanceTypes[0].VCpuInfo.DefaultVCpus) != 2 ||
		kinds.InstanceTypes[0].ProcessorInfo.SupportedArchitectures[0] != types.ArchitectureTypeX8664 || len(kinds.InstanceTypes[0].SupportedUsageClasses) != 2 {
		t.Errorf("%v %+v", err, kinds)
	}
	places, err := c.DescribeInstanceTypeOfferings(ctx, &ec2.DescribeInstanceTypeOfferingsInput{LocationType: types.LocationTypeAvailabilityZone})
	if err != nil || len(places.InstanceTypeOfferings) != 9 {
		t.Errorf("%v %+v", err, places)
	}
	subnets, err := c.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{"subnet-0b"}})
	if err != nil || len(subnets.Subnets) != 1 || aws.ToInt32(subnets.Subnets[0].AvailableIpAddressCount) != 4000 {
		t.Errorf("%v %+v", err, subnets)
	}
	images, err := c.DescribeImages(ctx, &ec2.DescribeImagesInput{ImageIds: []string{"ami-0123456789abcdef1"}})
	if err != nil || len(images.Images) != 1 || aws.ToString(images.Images[0].RootDeviceName) != "/dev/xvda" || images.Images[0].Architecture != types.ArchitectureValuesArm64 {
		t.Errorf("%v %+v", err, images)
	}
	prices, err := c.DescribeSpotPriceHistory(ctx, &ec2.DescribeSpotPriceHistoryInput{StartTime: aws.Time(time.Now()), InstanceTypes: []types.InstanceType{"m7i.large"},
		ProductDescriptions: []string{"Linux/UNIX"}})
	if err != nil || len(prices.SpotPriceHistory) != 2 || aws.ToString(prices.SpotPriceHistory[0].SpotPrice) == "" {
		t.Errorf("%v %+v", err, prices)
	}
}

// The SDK reads the code of each kind of refusal.
func TestRefusals(t *testing.T) {
	for want, of := range map[string][2]string{
		"InsufficientInstanceCapacity": {"create: capacity", "AKIDTEST"},
		"RequestLimitExceeded":         {"call: throttle", "AKIDTEST"},
		"VcpuLimitExceeded":            {"call: refuse VcpuLimitExceeded", "AKIDTEST"},
		"RequestExpired":               {"account: clock 16m", "AKIDTEST"},
		"AuthFailure":                  {"", "AKIDNONE"},
	} {
		_, c := open(t, of[0], of[1])
		if _, err := c.RunInstances(t.Context(), launch("t1")); codeOf(err) != want {
			t.Errorf("%s: %v", want, err)
		}
	}
	_, c := open(t, "", "AKIDTEST")
	_, err := c.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{"i-0123456789abcdef0"}})
	if codeOf(err) != "InvalidInstanceID.NotFound" || !strings.Contains(err.Error(), "i-0123456789abcdef0") {
		t.Error(err)
	}
	dry := launch("t2")
	dry.DryRun = aws.Bool(true)
	if _, err := c.RunInstances(t.Context(), dry); codeOf(err) != "DryRunOperation" {
		t.Error(err)
	}
}
