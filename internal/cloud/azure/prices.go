package azure

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud/driver"
)

// priceList is what sizes cost an hour in the location, in dollars.
type priceList struct{ onDemand, spot map[string]float64 }

const (
	// maxPricePages bounds the price list of a location, which has about 60 pages of 100 rows.
	maxPricePages = 400
	maxPricePage  = 4 << 20
	// ssdMonth is what a GiB of a standard SSD costs a month, in dollars: disks are billed by steps, and
	// this is a step's price (E6: 64 GiB, 4.80) by its size. It is a hundredth of most machines'.
	ssdMonth, hoursPerMonth = 0.075, 730
)

// priceReader reads the price list.
type priceReader struct {
	// at is the address of the list; empty: there is none.
	at, location string
	client       *http.Client
	now          func() time.Time
}

// read reads the retail price list, which needs no credentials. Prices of the contract of a
// subscription are not in it: price_factor is for them.
func (r *priceReader) read(ctx context.Context) (priceList, error) {
	out := priceList{map[string]float64{}, map[string]float64{}}
	if r.at == "" {
		return out, &muster.Fault{Kind: muster.FaultInvalid, Field: "prices", Message: "this cloud has no price list: write the prices of the sizes in prices"}
	}
	filter := "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '" + r.location + "'"
	next := r.at + "?" + url.Values{"$filter": {filter}}.Encode()
	for range maxPricePages {
		page, err := r.page(ctx, next)
		if err != nil {
			return out, err
		}
		for i := range page.Items {
			page.Items[i].into(&out)
		}
		if page.Next == "" {
			return out, nil
		}
		if next, err = r.following(page.Next); err != nil {
			return out, err
		}
	}
	return out, muster.Faultf(muster.FaultTransient, "price list: more than %d pages", maxPricePages)
}

// following is the link to a further page. The price list writes the port into it.
func (r *priceReader) following(link string) (string, error) {
	own, err := url.Parse(r.at)
	at, err2 := url.Parse(link)
	if err != nil || err2 != nil || at.Hostname() != own.Hostname() {
		return "", muster.Faultf(muster.FaultTransient, "price list: the next page is at another host")
	}
	return at.String(), nil
}

// pricePage is a page of the price list.
type pricePage struct {
	Items []priceRow `json:"Items"`
	Next  string     `json:"NextPageLink"`
}

// priceRow is one price of one size.
type priceRow struct {
	Size    string  `json:"armSkuName"`
	Name    string  `json:"skuName"`
	Product string  `json:"productName"`
	Unit    string  `json:"unitOfMeasure"`
	Price   float64 `json:"retailPrice"`
	Type    string  `json:"type"`
}

// into adds a price of Linux by the hour. Spot prices are rows of their own.
func (r *priceRow) into(l *priceList) {
	if r.Size == "" || r.Type != "Consumption" || r.Unit != "1 Hour" || !(r.Price > 0) ||
		strings.Contains(r.Product, "Windows") || strings.HasSuffix(r.Name, " Low Priority") || strings.Contains(r.Product, "CloudServices") || strings.Contains(r.Product, "Dedicated Host") {
		return
	}
	if strings.HasSuffix(r.Name, " Spot") {
		l.spot[r.Size] = r.Price
		return
	}
	l.onDemand[r.Size] = r.Price
}

// page reads one page.
func (r *priceReader) page(ctx context.Context, at string) (page pricePage, err error) {
	ctx, sent := driver.Trace(ctx)
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return page, fmt.Errorf("price list: %w", err)
	}
	resp, err := r.client.Do(q)
	if err != nil {
		return page, sent.Fault("price list", driver.Reads, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		f := &muster.Fault{Kind: muster.FaultTransient, Message: "price list: status " + resp.Status}
		if resp.StatusCode == http.StatusTooManyRequests {
			f.After = driver.RetryAfter(resp.Header, r.now(), throttledAfter)
		}
		return page, f
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxPricePage)).Decode(&page); err != nil {
		return page, &muster.Fault{Kind: muster.FaultTransient, Message: "price list: a page cannot be read", Err: err}
	}
	return page, nil
}

// priceOf is what a size costs an hour with its disk; false: no price is known. An operator's own price
// is taken as it is.
func (p *Provider) priceOf(name string, m muster.Market, prices priceList) (muster.Price, bool) {
	table := prices.onDemand
	if m == muster.Spot {
		table = prices.spot
	}
	cost, known := table[name]
	if !known {
		cost = -1
	}
	if m == muster.Spot {
		// The operator's table has prices on demand.
		if !known {
			return 0, false
		}
		return driver.PriceOf(cost + p.diskPrice()), true
	}
	price, ok := p.cfg.Prices.Of(name, cost)
	if ok && !p.cfg.Prices.Has(name) {
		price += driver.PriceOf(p.diskPrice())
	}
	return price, ok
}

// diskPrice is what the root disk costs an hour.
func (p *Provider) diskPrice() float64 {
	return float64(gigabytes(p.cfg.Disk)) * ssdMonth / hoursPerMonth
}
