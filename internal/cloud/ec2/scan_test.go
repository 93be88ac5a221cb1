package ec2

import (
	"encoding/xml"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

// fullInstanceXML is an instance with what EC2 says of one besides, about four kilobytes.
func fullInstanceXML(n int) string {
	text := instanceXML(id(n), "running", 0, "muster-owner=c1", fmt.Sprint("muster-token=token-", n), fmt.Sprint("muster-node=node-", n), "muster-pool=main", "muster-intent=", "Name=a &amp; b", "team=platform")
	const besides = `<privateDnsName>ip-10-0-0-1.eu-central-1.compute.internal</privateDnsName><dnsName/><reason/><productCodes/><monitoring><state>disabled</state></monitoring>` +
		`<subnetId>subnet-0a</subnetId><vpcId>vpc-1</vpcId><sourceDestCheck>true</sourceDestCheck><groupSet><item><groupId>sg-1</groupId><groupName>muster</groupName></item></groupSet>` +
		`<architecture>x86_64</architecture><rootDeviceType>ebs</rootDeviceType><rootDeviceName>/dev/xvda</rootDeviceName><blockDeviceMapping><item><deviceName>/dev/xvda</deviceName><ebs>` +
		`<volumeId>vol-1</volumeId><status>attached</status><attachTime>2026-01-01T00:00:00.000Z</attachTime><deleteOnTermination>true</deleteOnTermination></ebs></item></blockDeviceMapping>` +
		`<virtualizationType>hvm</virtualizationType><clientToken>b8f27efe64d5dee07e99fe34dd280b37140ab51376e53a5a</clientToken><hypervisor>xen</hypervisor><networkInterfaceSet><item>` +
		`<networkInterfaceId>eni-1</networkInterfaceId><subnetId>subnet-0a</subnetId><vpcId>vpc-1</vpcId><description/><ownerId>123456789012</ownerId><status>in-use</status><macAddress>06:00:00:00:00:01</macAddress>` +
		`<privateIpAddress>10.0.0.1</privateIpAddress><privateDnsName>ip-10-0-0-1.eu-central-1.compute.internal</privateDnsName><sourceDestCheck>true</sourceDestCheck><groupSet><item><groupId>sg-1</groupId>` +
		`<groupName>muster</groupName></item></groupSet><attachment><attachmentId>eni-attach-1</attachmentId><deviceIndex>0</deviceIndex><status>attached</status><attachTime>2026-01-01T00:00:00.000Z</attachTime>` +
		`<deleteOnTermination>true</deleteOnTermination><networkCardIndex>0</networkCardIndex></attachment><privateIpAddressesSet><item><privateIpAddress>10.0.0.1</privateIpAddress>` +
		`<privateDnsName>ip-10-0-0-1.eu-central-1.compute.internal</privateDnsName><primary>true</primary></item></privateIpAddressesSet><ipv6AddressesSet/><interfaceType>interface</interfaceType><ipv4PrefixSet/>` +
		`<ipv6PrefixSet/><operator><managed>false</managed></operator></item></networkInterfaceSet><ebsOptimized>false</ebsOptimized><enaSupport>true</enaSupport><cpuOptions><coreCount>1</coreCount>` +
		`<threadsPerCore>2</threadsPerCore></cpuOptions><capacityReservationSpecification><capacityReservationPreference>open</capacityReservationPreference></capacityReservationSpecification>` +
		`<hibernationOptions><configured>false</configured></hibernationOptions><enclaveOptions><enabled>false</enabled></enclaveOptions><metadataOptions><state>applied</state><httpTokens>required</httpTokens>` +
		`<httpPutResponseHopLimit>1</httpPutResponseHopLimit><httpEndpoint>enabled</httpEndpoint><httpProtocolIpv4>enabled</httpProtocolIpv4><httpProtocolIpv6>disabled</httpProtocolIpv6>` +
		`<instanceMetadataTags>disabled</instanceMetadataTags></metadataOptions><maintenanceOptions><autoRecovery>default</autoRecovery></maintenanceOptions><currentInstanceBootMode>legacy-bios</currentInstanceBootMode>`
	return strings.Replace(text, "<tagSet>", besides+"<tagSet>", 1)
}

func fullPage(n int) []byte {
	var b strings.Builder
	for i := range n {
		// A launch is a reservation.
		fmt.Fprintf(&b, "<item><reservationId>r-%d</reservationId><ownerId>123456789012</ownerId><groupSet/><instancesSet>\n%s\n</instancesSet></item>", i, fullInstanceXML(i))
	}
	return []byte(ok("DescribeInstances", "<reservationSet>"+b.String()+"</reservationSet><nextToken>a&lt;b</nextToken>").body)
}

// The driver's own reader reads lists as encoding/xml does.
func TestListsAreReadAsByTheLibrary(t *testing.T) {
	for name, body := range map[string][]byte{
		"full": fullPage(5),
		"odd": []byte(`<?xml version="1.0"?><!-- a > b --><DescribeInstancesResponse a="x"><nextToken/><reservationSet ><item><instancesSet><item a='b'><instanceId>i-1</instanceId ><stateReason><code>Server.X</code><message>a &#x26; b &quot;c&apos; &#100;</message></stateReason>` +
			`<launchTime>2026-01-01T00:00:00Z</launchTime><instanceLifecycle>spot</instanceLifecycle><ipAddress>1.2.3.4</ipAddress><tagSet><item><key>k</key><value/></item><item><value>only</value></item></tagSet><amiLaunchIndex>7</amiLaunchIndex></item></instancesSet></item></reservationSet></DescribeInstancesResponse>`),
		"none":        []byte(ok("DescribeInstances", "<reservationSet/>").body),
		"other sets":  []byte(ok("DescribeInstances", "<otherSet><item><instancesSet><item><instanceId>i-1</instanceId></item></instancesSet></item></otherSet>").body),
		"another one": fullPage(1),
	} {
		var want instancesAnswer
		if err := xml.Unmarshal(body, &want); err != nil {
			t.Fatal(name, err)
		}
		got, err := readInstances(body)
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %v\n%+v\nnot\n%+v", name, err, got, want)
		}
	}
}

func TestAListThatIsNotWholeIsAnError(t *testing.T) {
	body := fullPage(1)
	for n := range len(body) - 1 {
		if _, err := readInstances(body[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are taken for a list", n, len(body))
		}
	}
	for _, bad := range []string{"", "<html><body/></html>", "<DescribeInstancesResponse></Other>", "<!DOCTYPE html><DescribeInstancesResponse/>", "<DescribeInstancesResponse/><DescribeInstancesResponse/>", "</a>", "< >", "<>",
		"<DescribeInstancesResponse><nextToken>&bad;</nextToken></DescribeInstancesResponse>", "<DescribeInstancesResponse><nextToken>&amp</nextToken></DescribeInstancesResponse>"} {
		if got, err := readInstances([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzReadInstances(f *testing.F) {
	f.Add(fullPage(1))
	f.Add([]byte("<DescribeInstancesResponse><nextToken>&#x26;</nextToken><a/></DescribeInstancesResponse>"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := readInstances(body)
		if err == nil && got == nil {
			t.Error("neither")
		}
	})
}

func BenchmarkPageOfAThousand(b *testing.B) {
	body := fullPage(1000)
	for name, read := range map[string]func() (int, error){
		"own": func() (int, error) { a, err := readInstances(body); return len(a.Reservations), err },
		"library": func() (int, error) {
			var a instancesAnswer
			err := decodeAnswer(body, "DescribeInstances", &a)
			return len(a.Reservations), err
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if n, err := read(); err != nil || n != 1000 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
