package ec2test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// static makes the filter values of an entry that never changes.
func static(own map[string]string) func(string) ([]string, bool) {
	return func(name string) ([]string, bool) {
		v, ok := own[name]
		return []string{v}, ok
	}
}

// missing is the first of the ids that is not there, or empty.
func missing(ids []string, there func(string) bool) string {
	for _, id := range ids {
		if !there(id) {
			return id
		}
	}
	return ""
}

// describeTypes has pages of 100 at most, while EC2 has some 900 types: a driver that reads one page
// has not seen them.
func (c *call) describeTypes() (string, *failure) {
	names := c.values("InstanceType")
	// One wrong name refuses the whole call, as for instances.
	if m := missing(names, func(n string) bool {
		return slices.ContainsFunc(c.s.cfg.Types, func(t Type) bool { return t.Name == n })
	}); m != "" {
		return "", fail(400, "InvalidInstanceType", "The following supplied instance types do not exist: [%s]", m)
	}
	return c.listed("instanceTypeSet", 5, 100, func(time.Time) []row {
		var rows []row
		for _, t := range c.s.cfg.Types {
			if len(names) > 0 && !slices.Contains(names, t.Name) {
				continue
			}
			usage := ""
			if t.OnDemand > 0 {
				usage += el("item", "on-demand")
			}
			if t.Spot > 0 {
				usage += el("item", "spot")
			}
			gpus := ""
			if g := t.GPUs; g.Count > 0 {
				gpus = nest("gpuInfo", nest("gpus", nest("item", el("name", g.Name), el("manufacturer", g.Maker), el("count", itoa(g.Count)), nest("memoryInfo", el("sizeInMiB", itoa(g.MiB))))),
					el("totalGpuMemoryInMiB", itoa(g.MiB*g.Count)))
			}
			rows = append(rows, row{static(map[string]string{"instance-type": t.Name, "current-generation": "true", "bare-metal": "false",
				"processor-info.supported-architecture": t.Arch}), nest("item", el("instanceType", t.Name), el("currentGeneration", "true"), el("bareMetal", "false"),
				nest("vCpuInfo", el("defaultVCpus", itoa(t.CPUs))), nest("memoryInfo", el("sizeInMiB", itoa(t.MiB))),
				nest("processorInfo", nest("supportedArchitectures", el("item", t.Arch))), nest("supportedUsageClasses", usage), gpus)})
		}
		return rows
	})
}

// zones are those of the subnets.
func (s *Server) zones() []string {
	var out []string
	for _, in := range s.cfg.Subnets {
		if !slices.Contains(out, in.Zone) {
			out = append(out, in.Zone)
		}
	}
	return out
}

// inZone reports whether a zone has the type at all, whatever its capacity is.
func (s *Server) inZone(t Type, zone string) bool {
	// Types that a zone does not have are what Unsupported is about.
	return t.Zones == nil || slices.Contains(t.Zones, zone)
}

// describeTypeOfferings is where a driver learns that before a launch is refused for it.
func (c *call) describeTypeOfferings() (string, *failure) {
	place := c.form.Get("LocationType")
	// Without a place EC2 means the region, which says nothing about zones.
	if place != "" && place != "availability-zone" && place != "region" {
		return "", fail(400, "InvalidParameterValue", "Value (%s) for parameter LocationType is invalid.", place)
	}
	return c.listed("instanceTypeOfferingSet", 5, 1000, func(time.Time) []row {
		var rows []row
		zones := c.s.zones()
		if place != "availability-zone" {
			zones = []string{c.s.cfg.Region}
		}
		for _, t := range c.s.cfg.Types {
			for _, z := range zones {
				if place == "availability-zone" && !c.s.inZone(t, z) {
					continue
				}
				rows = append(rows, row{static(map[string]string{"instance-type": t.Name, "location": z}),
					nest("item", el("instanceType", t.Name), el("locationType", place), el("location", z))})
			}
		}
		return rows
	})
}

// describeSubnets tells how many addresses are free now. Others launch into the same subnets, so a
// launch can be refused all the same.
func (c *call) describeSubnets() (string, *failure) {
	ids := c.values("SubnetId")
	if m := missing(ids, func(id string) bool {
		return slices.ContainsFunc(c.s.cfg.Subnets, func(in Subnet) bool { return in.ID == id })
	}); m != "" {
		return "", fail(400, "InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", m)
	}
	return c.listed("subnetSet", 5, 1000, func(time.Time) []row {
		var rows []row
		for _, in := range c.s.cfg.Subnets {
			if len(ids) > 0 && !slices.Contains(ids, in.ID) {
				continue
			}
			rows = append(rows, row{static(map[string]string{"subnet-id": in.ID, "availability-zone": in.Zone, "vpc-id": c.s.cfg.VPC}),
				nest("item", el("subnetId", in.ID), el("state", "available"), el("vpcId", c.s.cfg.VPC), el("availabilityZone", in.Zone),
					el("availableIpAddressCount", itoa(c.s.free(in))))})
		}
		return rows
	})
}

// describeImages tells the name of the root device, without which no disk can be given a size.
func (c *call) describeImages() (string, *failure) {
	ids := c.values("ImageId")
	if m := missing(ids, func(id string) bool {
		return slices.ContainsFunc(c.s.cfg.Images, func(i Image) bool { return i.ID == id })
	}); m != "" {
		return "", fail(400, "InvalidAMIID.NotFound", "The image id '[%s]' does not exist", m)
	}
	return c.listed("imagesSet", 1, 1000, func(time.Time) []row {
		var rows []row
		for _, i := range c.s.cfg.Images {
			if len(ids) > 0 && !slices.Contains(ids, i.ID) {
				continue
			}
			rows = append(rows, row{static(map[string]string{"image-id": i.ID, "name": i.Name, "architecture": i.Arch, "state": "available"}),
				nest("item", el("imageId", i.ID), el("imageState", "available"), el("name", i.Name), el("architecture", i.Arch), el("rootDeviceName", i.Root), el("rootDeviceType", "ebs"))})
		}
		return rows
	})
}

// describeSpotPrices has several rows for each type and zone, in no order, and with products that
// nobody asked for unless they are filtered.
func (c *call) describeSpotPrices() (string, *failure) {
	if v := c.form.Get("StartTime"); v != "" {
		if _, err := time.Parse(time.RFC3339, v); err != nil {
			return "", fail(400, "InvalidParameterValue", "Value (%s) for parameter startTime is invalid.", v)
		}
	}
	names, products := c.values("InstanceType"), c.values("ProductDescription")
	return c.listed("spotPriceHistorySet", 5, 1000, func(now time.Time) []row {
		var rows []row
		// The older of two rows comes first for one product and last for the other.
		for k, product := range []string{"Linux/UNIX (Amazon VPC)", "Linux/UNIX", "Windows"} {
			if len(products) > 0 && !slices.Contains(products, product) {
				continue
			}
			for _, t := range c.s.cfg.Types {
				for _, z := range c.s.zones() {
					if t.Spot == 0 || !c.s.inZone(t, z) || len(names) > 0 && !slices.Contains(names, t.Name) {
						continue
					}
					price := t.Spot
					if k == 1 {
						price *= 2
					}
					at := now.Add(-time.Minute * time.Duration(1+k))
					rows = append(rows, row{static(map[string]string{"instance-type": t.Name, "availability-zone": z, "product-description": product}),
						nest("item", el("instanceType", t.Name), el("productDescription", product), el("spotPrice", strconv.FormatFloat(price, 'f', 6, 64)),
							el("timestamp", stamp(at)), el("availabilityZone", z))})
				}
			}
		}
		return rows
	})
}

// strict reads JSON and refuses members that it does not know.
func strict(body []byte, into any) *failure {
	d := json.NewDecoder(bytes.NewReader(body))
	// As with forms: a misspelt member must not be ignored.
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fail(400, "SerializationException", "%s", err)
	}
	return nil
}

// getParameter is the parameter store's.
func (c *call) getParameter() (string, *failure) {
	var ask struct {
		Name           string
		WithDecryption bool
	}
	if refused := strict(c.body, &ask); refused != nil {
		return "", refused
	}
	v, ok := c.s.cfg.Parameters[ask.Name]
	if !ok {
		return "", fail(400, "ParameterNotFound", "Parameter %s not found.", ask.Name)
	}
	b, _ := json.Marshal(map[string]any{"Parameter": map[string]any{"Name": ask.Name, "Type": "String", "Value": v, "Version": 1}})
	return string(b), nil
}

// getProducts is the price list's. Its pages have 100 entries.
func (c *call) getProducts() (string, *failure) {
	var ask struct {
		ServiceCode, FormatVersion, NextToken string
		Filters                               []struct{ Type, Field, Value string }
		MaxResults                            int
	}
	if refused := strict(c.body, &ask); refused != nil {
		return "", refused
	}
	if ask.ServiceCode != "AmazonEC2" || ask.MaxResults < 0 || ask.MaxResults > 100 {
		return "", fail(400, "InvalidParameterException", "ServiceCode or MaxResults is invalid")
	}
	if ask.MaxResults == 0 {
		ask.MaxResults = 100
	}
	var list []string
	for _, t := range c.s.cfg.Types {
		// A reader that takes the first price of a type gets that of capacity blocks, which is 0.
		for _, market := range []string{"CapacityBlock", "OnDemand"} {
			own := map[string]string{"regionCode": c.s.cfg.Region, "operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
				"instanceType": t.Name, "marketoption": market}
			all := t.OnDemand > 0
			for _, f := range ask.Filters {
				v, known := own[f.Field]
				if f.Type != "TERM_MATCH" || !known {
					return "", fail(400, "InvalidParameterException", "The filter %s is not known here", f.Field)
				}
				all = all && v == f.Value
			}
			if all {
				list = append(list, product(t, market, own))
			}
		}
	}
	from, _ := strconv.Atoi(ask.NextToken)
	to := min(from+ask.MaxResults, len(list))
	answer := map[string]any{"FormatVersion": "aws_v1", "PriceList": list[min(from, to):to]}
	if to < len(list) {
		answer["NextToken"] = itoa(to)
	}
	b, _ := json.Marshal(answer)
	return string(b), nil
}

// product is one entry of the price list. A capacity block costs nothing by the hour.
func product(t Type, market string, attributes map[string]string) string {
	price := fmt.Sprintf("%.10f", t.OnDemand)
	if market != "OnDemand" {
		price = "0.0000000000"
	}
	b, _ := json.Marshal(map[string]any{"product": map[string]any{"sku": t.Name, "attributes": attributes},
		"terms": map[string]any{"OnDemand": map[string]any{"a": map[string]any{"priceDimensions": map[string]any{
			"b": map[string]any{"unit": "Hrs", "pricePerUnit": map[string]string{"USD": price}}}}}}})
	return string(b)
}
