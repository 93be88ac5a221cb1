package ec2

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"

	"github.com/musterhq/muster/internal/cloud/driver"
)

const (
	// maxPage is the most results per page of most actions; maxValues the most values of one filter.
	maxPage, maxValues = 1000, 200
	// maxPages bounds a list whose pages never end.
	maxPages = 500
)

// list sets Name.1, Name.2, and so on.
func list[T ~string](form url.Values, name string, values []T) {
	for i, v := range values {
		form.Set(name+"."+strconv.Itoa(i+1), string(v))
	}
}

// filter adds one filter; an instance passes if it fits one of the values.
func filter[T ~string](form url.Values, name string, values ...T) {
	n := 1
	for form.Has("Filter." + strconv.Itoa(n) + ".Name") {
		n++
	}
	at := "Filter." + strconv.Itoa(n)
	form.Set(at+".Name", name)
	list(form, at+".Value", values)
}

// tags sets the tags of what a launch makes, of one kind of resource.
func tagSpec(form url.Values, n int, kind string, tags map[string]string) {
	at := fmt.Sprintf("TagSpecification.%d", n)
	form.Set(at+".ResourceType", kind)
	for i, k := range slices.Sorted(maps.Keys(tags)) {
		form.Set(fmt.Sprintf("%s.Tag.%d.Key", at, i+1), k)
		form.Set(fmt.Sprintf("%s.Tag.%d.Value", at, i+1), tags[k])
	}
}

// pages makes a call of a Describe action for each page. See clears out before each, and takes
// over what it holds afterwards; it returns the token of the next page.
func (p *Provider) pages(ctx context.Context, action string, form url.Values, size int, fresh func() any, next func(any) string) error {
	if size > 0 {
		form.Set("MaxResults", strconv.Itoa(size))
	}
	for range maxPages {
		page := fresh()
		if err := p.api.do(ctx, call{action: action, form: form, effect: driver.Reads}, page); err != nil {
			return err
		}
		token := next(page)
		if token == "" {
			return nil
		}
		form.Set("NextToken", token)
	}
	return fmt.Errorf("%s: more than %d pages", p.api.named(action), maxPages)
}

// each reads all pages of a Describe action whose answer is a T.
func each[T any](ctx context.Context, p *Provider, action string, form url.Values, size int, take func(*T) (next string)) error {
	return p.pages(ctx, action, form, size, func() any { return new(T) }, func(page any) string { return take(page.(*T)) })
}
