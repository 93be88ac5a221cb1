package gcetest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// thingLocked answers for disks and addresses.
func (c *Cloud) thingLocked(q *request, all map[string]object, kind, prefix, id string) (any, *refusal) {
	_, verb, _ := strings.Cut(q.method, ".")
	if verb == "aggregatedList" {
		return c.pageLocked(q, all, kind, prefix)
	}
	thing := all[id]
	switch {
	case thing == nil:
		return nil, missing(kind + "/" + id)
	case verb == "get":
		return thing, nil
	case thing["users"] != nil:
		return nil, refuse(http.StatusBadRequest, "resourceInUseByAnotherResource", "The resource is already being used")
	}
	return c.operateLocked(about{method: q.method}, "delete", id, func() { delete(all, id) }).v, nil
}

// selected reports whether a thing fits a filter of equal labels, the only one that is understood.
func selected(filter string, thing object) bool {
	key, value, _ := strings.Cut(strings.TrimPrefix(filter, "labels."), "=")
	labels, _ := thing["labels"].(object)
	have, ok := labels[key]
	return ok && have == value
}

// pageLocked is a page of a list of all scopes.
func (c *Cloud) pageLocked(q *request, all map[string]object, kind, prefix string) (any, *refusal) {
	filter := q.get("filter")
	if filter != "" && (!strings.HasPrefix(filter, "labels.") || !strings.Contains(filter, "=")) {
		return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'filter': '"+filter+"'.")
	}
	blind := ""
	if l := c.strikingLocked("list", "unreachable", about{}); l != nil {
		blind = l.at["zone"]
		if q.get("returnPartialSuccess") != "true" {
			return nil, refuse(http.StatusServiceUnavailable, "backendError", "A zone does not answer")
		}
	}
	var ids []string
	for _, id := range sorted(all) {
		scope, _, _ := strings.Cut(id, "/")
		if scope != blind && (filter == "" || selected(filter, all[id])) {
			ids = append(ids, id)
		}
	}
	size, from := 500, 0
	if n, err := strconv.Atoi(q.get("maxResults")); err == nil {
		size = n
	}
	if l := c.strikingLocked("list", "page", about{}); l != nil {
		size = min(size, l.number())
	}
	if token := q.get("pageToken"); token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "after-"))
		if err != nil {
			return nil, refuse(http.StatusBadRequest, "invalid", "Invalid value for field 'pageToken': '"+token+"'.")
		}
		from = min(n, len(ids))
		if c.strikingLocked("list", "repeat", about{}) != nil {
			from = max(from-1, 0)
		}
	}
	to := min(from+size, len(ids))
	items := object{}
	for _, zone := range Zones {
		scope := prefix + zone
		if prefix == "regions/" {
			scope = prefix + zone[:strings.LastIndexByte(zone, '-')]
		}
		items[scope] = object{"warning": object{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results for scope '" + scope + "' on this page."}}
	}
	for _, id := range ids[from:to] {
		scope, _, _ := strings.Cut(id, "/")
		in, _ := items[prefix+scope].(object)
		list, _ := in[kind].([]any)
		items[prefix+scope] = object{kind: append(slices.Clip(list), all[id])}
	}
	out := object{"items": items}
	if to < len(ids) {
		out["nextPageToken"] = "after-" + strconv.Itoa(to)
	}
	if blind != "" {
		items["zones/"+blind] = object{"warning": object{"code": "UNREACHABLE", "message": "The zone does not answer"}}
		out["unreachables"] = []any{"projects/" + Project + "/zones/" + blind}
	}
	return out, nil
}
