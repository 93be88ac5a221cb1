package openstacktest

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Thing is a volume, a port or a floating address.
type Thing struct {
	ID string
	// Kind is volume, port or floatingip.
	Kind string
	// Owner is the value of its tag muster-owner; empty: it has none.
	Owner string
	// Attached: it belongs to a server.
	Attached bool
	Created  time.Time
}

// Add makes a thing apart from any server, and returns its id.
func (p *Project) Add(t Thing) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.ID, t.Created = p.idLocked(), p.now()
	p.things[t.ID] = &t
	return t.ID
}

// shown is a thing as its service shows it.
func (t *Thing) shown() map[string]any {
	out := map[string]any{"id": t.ID, "created_at": t.Created.UTC().Format(time.RFC3339), "tags": []string{}}
	if t.Owner != "" {
		out["tags"] = []string{"muster-owner:" + t.Owner}
	}
	user := ""
	if t.Attached {
		user = "33333333-0000-4000-8000-000000000001"
	}
	switch t.Kind {
	case "port":
		out["device_id"], out["device_owner"] = user, ""
	case "floatingip":
		out["port_id"] = nil
		if user != "" {
			out["port_id"] = user
		}
	case "volume":
		delete(out, "tags")
		out["created_at"] = t.Created.UTC().Format("2006-01-02T15:04:05.000000")
		out["metadata"], out["attachments"], out["status"] = map[string]string{"muster-owner": t.Owner}, []any{}, "available"
		if user != "" {
			out["attachments"], out["status"] = []any{map[string]any{"server_id": user}}, "in-use"
		}
	}
	return out
}

func (p *Project) listThings(kind, field string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tags := r.URL.Query().Get("tags")
		p.mu.Lock()
		defer p.mu.Unlock()
		out := []any{}
		for _, id := range slices.Sorted(maps.Keys(p.things)) {
			if t := p.things[id]; t.Kind == kind && (tags == "" || tags == "muster-owner:"+t.Owner) {
				out = append(out, t.shown())
			}
		}
		standin.JSON(w, http.StatusOK, map[string]any{field: out})
	}
}

func (p *Project) getThing(kind string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t := p.things[r.PathValue("id")]; t != nil && t.Kind == kind {
			standin.JSON(w, http.StatusOK, map[string]any{kind: t.shown()})
			return
		}
		refused(w, http.StatusNotFound, "NeutronError", kind+" could not be found.")
	}
}

func (p *Project) deleteThing(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.things[r.PathValue("id")] == nil {
		refused(w, http.StatusNotFound, "NeutronError", "could not be found.")
		return
	}
	delete(p.things, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

// pair is a key pair.
type pair struct {
	key  string
	made time.Time
}

func (p *Project) createPair(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Pair struct {
			Name string `json:"name"`
			Key  string `json:"public_key"`
		} `json:"keypair"`
	}
	if json.NewDecoder(r.Body).Decode(&q) != nil || !strings.HasPrefix(q.Pair.Key, "ssh-") {
		refused(w, http.StatusBadRequest, "badRequest", "Keypair data is invalid")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.pairs[q.Pair.Name]; there {
		refused(w, http.StatusConflict, "conflictingRequest", "Key pair '"+q.Pair.Name+"' already exists.")
		return
	}
	p.pairs[q.Pair.Name] = pair{q.Pair.Key, p.now()}
	standin.JSON(w, http.StatusCreated, map[string]any{"keypair": map[string]any{"name": q.Pair.Name, "type": "ssh", "public_key": q.Pair.Key, "user_id": "u", "fingerprint": "x"}})
}

// listPairs lists key pairs, without their times, as Nova's lists.
func (p *Project) listPairs(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := []any{}
	for _, name := range slices.Sorted(maps.Keys(p.pairs)) {
		out = append(out, map[string]any{"keypair": map[string]any{"name": name, "type": "ssh", "public_key": p.pairs[name].key, "fingerprint": "x"}})
	}
	standin.JSON(w, http.StatusOK, map[string]any{"keypairs": out})
}

func (p *Project) getPair(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have, there := p.pairs[r.PathValue("id")]
	if !there {
		refused(w, http.StatusNotFound, "itemNotFound", "Keypair not found")
		return
	}
	standin.JSON(w, http.StatusOK, map[string]any{"keypair": map[string]any{"name": r.PathValue("id"), "public_key": have.key, "created_at": have.made.UTC().Format("2006-01-02T15:04:05.000000")}})
}

func (p *Project) deletePair(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.pairs[r.PathValue("id")]; !there {
		refused(w, http.StatusNotFound, "itemNotFound", "Keypair not found")
		return
	}
	delete(p.pairs, r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

// AddPair takes a lock, as a server of Muster that died while it made the server of this name.
func (p *Project) AddPair(name string, age time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pairs[name] = pair{"ssh-ed25519 AAAA of another", p.now().Add(-age)}
}

// Age makes a key pair older.
func (p *Project) Age(name string, by time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.pairs[name]
	have.made = have.made.Add(-by)
	p.pairs[name] = have
}

func (p *Project) listFlavors(w http.ResponseWriter, _ *http.Request) {
	out := []any{}
	for _, k := range kinds {
		extra := k.extra
		if extra == nil {
			extra = map[string]string{}
		}
		out = append(out, map[string]any{"id": k.id, "name": k.name, "vcpus": k.cores, "ram": k.ram, "disk": k.disk, "swap": 0, "extra_specs": extra, "OS-FLV-EXT-DATA:ephemeral": 0})
	}
	standin.JSON(w, http.StatusOK, map[string]any{"flavors": out})
}

func (p *Project) listZones(w http.ResponseWriter, _ *http.Request) {
	out := []any{}
	for i, z := range zones {
		out = append(out, map[string]any{"zoneName": z, "zoneState": map[string]any{"available": i < 2}, "hosts": nil})
	}
	standin.JSON(w, http.StatusOK, map[string]any{"availabilityZoneInfo": out})
}

func (p *Project) limits(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	standin.JSON(w, http.StatusOK, map[string]any{"limits": map[string]any{"rate": []any{}, "absolute": map[string]any{
		"maxTotalInstances": p.options.MaxServers, "totalInstancesUsed": len(p.servers), "maxTotalCores": -1, "totalCoresUsed": 4 * len(p.servers)}}})
}

func (p *Project) listNetworks(w http.ResponseWriter, r *http.Request) {
	out := []any{}
	if r.URL.Query().Get("name") == Network {
		out = append(out, map[string]any{"id": NetworkID, "name": Network})
	}
	standin.JSON(w, http.StatusOK, map[string]any{"networks": out})
}

func (p *Project) listImages(w http.ResponseWriter, r *http.Request) {
	out := []any{}
	if r.URL.Query().Get("name") == Image {
		for id, at := range map[string]string{oldImageID: "2025-01-01T00:00:00Z", ImageID: "2026-01-01T00:00:00Z"} {
			out = append(out, map[string]any{"id": id, "name": Image, "status": "active", "created_at": at, "updated_at": at})
		}
	}
	for name, arch := range archImages {
		if r.URL.Query().Get("name") == name {
			out = append(out, map[string]any{"id": ImageARMID, "name": name, "status": "active", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "hw_architecture": arch})
		}
	}
	standin.JSON(w, http.StatusOK, map[string]any{"images": out})
}

// archImages are images that say what they are for, by name.
var archImages = map[string]string{ImageARM: "aarch64", ImageAMD: "x86_64"}

func (p *Project) getImage(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != ImageARMID {
		refused(w, http.StatusNotFound, "itemNotFound", "No image found with ID "+r.PathValue("id"))
		return
	}
	standin.JSON(w, http.StatusOK, map[string]any{"id": ImageARMID, "name": ImageARM, "status": "active", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "architecture": "aarch64"})
}
