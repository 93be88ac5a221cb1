package driver

import (
	"fmt"
	"math"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/musterhq/muster"
)

// Globs are patterns of instance types, as m7i.*. In them * stands for any characters and ? for
// one.
type Globs []string

// Check returns an error that names the first pattern that is none.
func (g Globs) Check() error {
	for _, p := range g {
		if _, err := path.Match(p, ""); err != nil || p == "" || strings.Contains(p, "/") {
			return fmt.Errorf("types: %q is not a pattern of instance types: write as m7i.* or m7i.large", p)
		}
	}
	return nil
}

// Match reports whether one of the patterns fits the type.
func (g Globs) Match(name string) bool {
	return slices.ContainsFunc(g, func(p string) bool { ok, _ := path.Match(p, name); return ok })
}

// MaxOfferings is how many offerings a provider may have: the sizing of pools reads each of them.
const MaxOfferings = 300

// CheckCount refuses more than MaxOfferings and names the pattern that fits most of them.
func (g Globs) CheckCount(offers []muster.Offering) error {
	if len(offers) <= MaxOfferings {
		return nil
	}
	widest, most := "", 0
	for _, p := range g {
		n := 0
		for i := range offers {
			if ok, _ := path.Match(p, string(offers[i].Name)); ok {
				n++
			}
		}
		if n > most {
			widest, most = p, n
		}
	}
	text := fmt.Sprintf("%d offerings of types, zones and markets; a provider may have %d", len(offers), MaxOfferings)
	if widest != "" {
		text += fmt.Sprintf(": %q alone gives %d, write a narrower pattern in types", widest, most)
	} else {
		text += ": name fewer zones, or instance types in types"
	}
	return &muster.Fault{Kind: muster.FaultInvalid, Field: "types", Message: text}
}

// CheckEndpoint returns an error if the address of a cloud's API is none; example is how to write it.
// Empty is right: the cloud's own.
func CheckEndpoint(address, example string) error {
	if u, err := url.Parse(address); address != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return fmt.Errorf("endpoint %q is not an address: write it as %s", address, example)
	}
	return nil
}

// Prices are an operator's own prices.
type Prices struct {
	// Table is the price per hour by instance type. It wins over what the cloud says.
	Table map[string]float64
	// Factor is for prices that the cloud says; 0: 1.
	Factor float64
}

// Check returns an error that names the first price that is none.
func (p Prices) Check() error {
	for name, price := range p.Table {
		if !(price >= 0 && price <= 1e9) {
			return fmt.Errorf("prices: %s costs %g: a price is a number per hour, not below 0", name, price)
		}
	}
	if !(p.Factor >= 0 && p.Factor <= 1e3) {
		return fmt.Errorf("price_factor: %g: it is a number such as 0.8, not below 0", p.Factor)
	}
	return nil
}

// Has reports whether the table has the type.
func (p Prices) Has(name string) bool { _, ok := p.Table[name]; return ok }

// Of is the price of a type that costs this much by the hour in the cloud; below 0: the cloud does
// not say. The second result is false if there is no price at all.
func (p Prices) Of(name string, cloud float64) (muster.Price, bool) {
	if own, ok := p.Table[name]; ok {
		return PriceOf(own), true
	}
	if cloud < 0 {
		return 0, false
	}
	if p.Factor > 0 {
		cloud *= p.Factor
	}
	return PriceOf(cloud), true
}

// PriceOf is an amount per hour in units of the currency as a Price.
func PriceOf(perHour float64) muster.Price { return muster.Price(math.Round(perHour * 1e6)) }
