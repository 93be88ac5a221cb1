package ec2test

// do does what a call asks for and returns the inside of its answer.
func (c *call) do() (string, *failure) {
	switch c.target {
	case "":
	case "AmazonSSM.GetParameter":
		return c.getParameter()
	case "AWSPriceListService.GetProducts":
		return c.getProducts()
	default:
		return "", fail(400, "UnknownOperationException", "%s is not served", c.target)
	}
	act, changes := map[string]func() (string, *failure){
		"RunInstances": c.runInstances, "TerminateInstances": c.change, "StopInstances": c.change, "StartInstances": c.change,
		"CreateTags": c.createTags, "DeleteVolume": c.deleteVolume,
	}[c.action]
	if changes {
		return act()
	}
	// What only reads needs no more than the right to: a dry run of it is always allowed here.
	if c.form.Get("DryRun") == "true" {
		return "", dryRun
	}
	return map[string]func() (string, *failure){
		"DescribeInstances": c.describeInstances, "DescribeInstanceStatus": c.describeStatus, "DescribeSpotInstanceRequests": c.describeSpotRequests,
		"DescribeVolumes": c.describeVolumes, "DescribeInstanceTypes": c.describeTypes, "DescribeInstanceTypeOfferings": c.describeTypeOfferings,
		"DescribeSubnets": c.describeSubnets, "DescribeImages": c.describeImages, "DescribeSpotPriceHistory": c.describeSpotPrices,
		"GetConsoleOutput": c.consoleOutput,
	}[c.action]()
}
