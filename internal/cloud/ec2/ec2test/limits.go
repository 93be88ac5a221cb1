package ec2test

import (
	"strconv"
	"strings"
	"time"
)

// bucket is a token bucket: what is in it, and when that was counted.
type bucket struct {
	level float64
	at    time.Time
}

// limit is the size of a bucket and what flows in per second, as EC2's throttling page has it.
type limit struct{ size, perSecond float64 }

// The numbers are those of "Request throttling for the Amazon EC2 API". They are shared by all
// programs of an account in a region, so a driver must not count on all of them.
var requestLimits = map[string]limit{
	"RunInstances": {5, 2}, "TerminateInstances": {100, 5}, "StartInstances": {5, 2}, "CreateTags": {100, 10},
}

// instanceLimits are buckets of instances. A refill of two a second is what many launches meet first
// once the bucket of a thousand is empty.
var instanceLimits = map[string]limit{
	"RunInstances": {1000, 2}, "TerminateInstances": {1000, 20}, "StartInstances": {1000, 2}, "StopInstances": {1000, 20},
}

// requestLimit is the bucket of an action, and its name: all describes have a bucket each, those
// without a filter or a page size a smaller one.
func (c *call) requestLimit() (string, limit) {
	if l, ok := requestLimits[c.action]; ok {
		return c.action, l
	}
	if !strings.HasPrefix(c.action, "Describe") {
		return c.action, limit{50, 5}
	}
	if !c.form.Has("Filter.1.Name") && !c.form.Has("MaxResults") {
		return c.action + " unfiltered", limit{50, 10}
	}
	return c.action, limit{100, 20}
}

// spend takes a call out of the buckets, if the script has switched them on.
func (s *Server) spend(c *call) *failure {
	// The parameter store and the price list have limits of their own, far above what is asked here.
	if c.target != "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.striking("account", "rates", subject{action: c.action})
	if l == nil {
		return nil
	}
	factor, _ := strconv.ParseFloat(l.words[0], 64)
	name, most := c.requestLimit()
	instances, counted := instanceLimits[c.action]
	// Instances are counted beside requests: one launch of a thousand takes as much as a thousand.
	n := len(c.values("InstanceId"))
	if c.action == "RunInstances" {
		n, _ = strconv.Atoi(c.form.Get("MaxCount"))
	}
	// A refused call costs nothing here. At EC2 it is not documented; a driver that repeats at once gets
	// nothing either way.
	ok := s.has(name, most, factor, 1)
	if ok && counted && c.form.Get("DryRun") != "true" {
		if ok = s.has(name+" instances", instances, factor, float64(n)); ok {
			s.buckets[name+" instances"].level -= float64(n)
		}
	}
	if !ok {
		return fail(503, "RequestLimitExceeded", "Request limit exceeded.")
	}
	s.buckets[name].level--
	return nil
}

// has fills a bucket up to now and reports whether n can be taken. mu is held.
func (s *Server) has(name string, l limit, factor, n float64) bool {
	// However small the factor is, one call fits: a bucket that nothing fits in would never let any through.
	size := max(1, l.size*factor)
	// A bucket is full when it is used for the first time, as that of an account that was idle.
	b := s.buckets[name]
	if b == nil {
		b = &bucket{level: size, at: s.now()}
		s.buckets[name] = b
	}
	b.level = min(size, b.level+l.perSecond*factor*s.now().Sub(b.at).Seconds())
	b.at = s.now()
	return b.level >= n
}
