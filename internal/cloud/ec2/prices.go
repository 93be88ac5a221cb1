package ec2

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"time"

	"github.com/musterhq/muster"
)

type typeZone struct{ name, zone string }

// spotAnswer is that of DescribeSpotPriceHistory. A type has several rows, in no order.
type spotAnswer struct {
	Rows []struct {
		Type  string    `xml:"instanceType"`
		Zone  string    `xml:"availabilityZone"`
		Price string    `xml:"spotPrice"`
		At    time.Time `xml:"timestamp"`
	} `xml:"spotPriceHistorySet>item"`
	Next string `xml:"nextToken"`
}

// readSpotPrices reads the spot prices that hold now, of the types on offer.
func (p *Provider) readSpotPrices(ctx context.Context) (map[typeZone]float64, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		return nil, err
	}
	out, at := map[typeZone]float64{}, map[typeZone]time.Time{}
	for len(types) > 0 {
		n := min(len(types), maxValues/2)
		form := url.Values{"StartTime": {p.cfg.Now().UTC().Format(time.RFC3339)}}
		list(form, "ProductDescription", []string{"Linux/UNIX", "Linux/UNIX (Amazon VPC)"})
		for i, t := range types[:n] {
			form.Set("InstanceType."+strconv.Itoa(i+1), t.name)
		}
		types = types[n:]
		err := each(ctx, p, "DescribeSpotPriceHistory", form, maxPage, func(a *spotAnswer) string {
			for _, r := range a.Rows {
				k := typeZone{r.Type, r.Zone}
				price, err := strconv.ParseFloat(r.Price, 64)
				if err != nil || !(price > 0) || r.At.Before(at[k]) {
					continue
				}
				out[k], at[k] = price, r.At
			}
			return a.Next
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// product is one entry of AWS's price list.
type product struct {
	Product struct {
		Attributes struct {
			Type   string `json:"instanceType"`
			Market string `json:"marketoption"`
		} `json:"attributes"`
	} `json:"product"`
	Terms struct {
		OnDemand map[string]struct {
			Dimensions map[string]struct {
				Unit  string            `json:"unit"`
				Price map[string]string `json:"pricePerUnit"`
			} `json:"priceDimensions"`
		} `json:"OnDemand"`
	} `json:"terms"`
}

// hourly is the price per hour, in dollars, or in yuan where AWS sells in yuan.
func (q *product) hourly() (float64, bool) {
	for _, term := range q.Terms.OnDemand {
		for _, d := range term.Dimensions {
			for _, currency := range []string{"USD", "CNY"} {
				if price, err := strconv.ParseFloat(d.Price[currency], 64); err == nil && price > 0 {
					return price, true
				}
			}
		}
	}
	return 0, false
}

const (
	// oneByOne is how many types are asked for one by one; more are read with the list of the region.
	oneByOne = 30
	// maxPricePages bounds the list of a region, which has about 15 pages.
	maxPricePages = 200
)

// readPrices reads on-demand prices of the types that the operator's own table lacks.
func (p *Provider) readPrices(ctx context.Context) (map[string]float64, error) {
	types, err := p.types.Get(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, t := range types {
		if !p.cfg.Prices.Has(t.name) {
			names = append(names, t.name)
		}
	}
	out := map[string]float64{}
	if len(names) == 0 {
		return out, nil
	}
	if p.api.pricing.url == "" {
		return nil, &muster.Fault{Kind: muster.FaultInvalid, Field: "prices",
			Message: "AWS serves no price list for region " + p.cfg.Region + ": write the prices of the types in prices"}
	}
	if len(names) > oneByOne {
		names = []string{""}
	}
	for _, name := range names {
		if err := p.readPricesOf(ctx, name, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readPricesOf reads the price of a type, or of all if the name is empty.
func (p *Provider) readPricesOf(ctx context.Context, name string, out map[string]float64) error {
	type field struct{ Type, Field, Value string }
	ask := struct {
		ServiceCode   string
		FormatVersion string
		Filters       []field
		MaxResults    int
		NextToken     string `json:",omitempty"`
	}{ServiceCode: "AmazonEC2", FormatVersion: "aws_v1", MaxResults: 100}
	for _, f := range [][2]string{{"regionCode", p.cfg.Region}, {"operatingSystem", "Linux"}, {"tenancy", "Shared"},
		{"preInstalledSw", "NA"}, {"capacitystatus", "Used"}, {"instanceType", name}} {
		if f[1] != "" {
			ask.Filters = append(ask.Filters, field{"TERM_MATCH", f[0], f[1]})
		}
	}
	for range maxPricePages {
		var page struct {
			PriceList []json.RawMessage
			NextToken string
		}
		if err := p.api.doJSON(ctx, p.api.pricing, "AWSPriceListService.GetProducts", ask, &page); err != nil {
			return err
		}
		for _, raw := range page.PriceList {
			// An entry is a string that has a document in JSON.
			var text string
			if json.Unmarshal(raw, &text) == nil {
				raw = json.RawMessage(text)
			}
			var q product
			if err := json.Unmarshal(raw, &q); err != nil {
				continue
			}
			if m := q.Product.Attributes.Market; m != "" && m != "OnDemand" {
				continue
			}
			if price, ok := q.hourly(); ok {
				out[q.Product.Attributes.Type] = price
			}
		}
		if page.NextToken == "" {
			return nil
		}
		ask.NextToken = page.NextToken
	}
	return nil
}

// gp3Month is what a GiB of a gp3 disk costs a month, in dollars: between 0.08 and 0.11, by region.
// The price list has it under names that are for humans, and it is a hundredth of most machines'.
const gp3Month, hoursPerMonth = 0.095, 730

// diskPrice is what the root disk costs an hour.
func (p *Provider) diskPrice() float64 {
	return float64(p.cfg.Disk/muster.GiB) * gp3Month / hoursPerMonth
}
