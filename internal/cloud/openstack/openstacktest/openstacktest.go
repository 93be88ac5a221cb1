// Package openstacktest is a stand-in of one project of an OpenStack cloud, for tests: identity,
// compute, network, image and volume services at one address, with what the driver of Muster calls of
// them. It does what a real Nova cannot be brought to do: cells that are down, answers that are lost,
// refusals for too many calls, tokens that end in the middle.
//
// It must never know the driver. It refuses fields of a create that it does not know.
package openstacktest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// Names and ids of what every project has.
const (
	// Cloud is the entry of clouds.yaml.
	Cloud = "acme"
	// Network and Image can be looked up by name. There are two images of the name; ImageID is the
	// newer one.
	Network   = "nodes"
	NetworkID = "11111111-0000-4000-8000-000000000001"
	Image     = "debian-12"
	ImageID   = "22222222-0000-4000-8000-000000000002"

	// ImageARM and ImageAMD say what they are for.
	ImageARM, ImageAMD = "debian-12-arm64", "debian-12-amd64"
	ImageARMID         = "22222222-0000-4000-8000-000000000003"

	oldImageID = "22222222-0000-4000-8000-000000000001"
	secret     = "application-credential-secret"
)

// Options say how the stand-in differs from a cloud that does everything at once.
type Options struct {
	// Build is how long a server is in status BUILD.
	Build time.Duration
	// MaxServers is the quota of servers; 0: 100.
	MaxServers int
	// Page is how many servers a page has at most; 0: 1,000, as Nova's.
	Page int
	// Machines is what stands behind servers; nil: nothing.
	Machines standin.Machines
	// Now is the clock; nil: the system's.
	Now func() time.Time
	// Services are the addresses in the catalog by type, as compute; nil: the stand-in's own. With them
	// it is the identity service of a Nova that runs elsewhere.
	Services map[string]string
	// Script says what goes wrong, see Play.
	Script string
}

// Project is one project.
type Project struct {
	// Answers has Refuse and Lose for calls as CreateServer.
	standin.Answers
	// URL is the address of the identity service, without its version.
	URL string

	t       testing.TB
	options Options
	now     func() time.Time
	started time.Time

	mu      sync.Mutex
	last    int
	tokens  map[string]bool
	servers map[string]*Server
	pairs   map[string]pair
	things  map[string]*Thing
	script  []*line
	// ever are the ids of all servers that were made, in order, with their metadata.
	ever  []Made
	calls map[string]int
	// deleted are servers whose machines are yet to be stopped.
	deleted []string
}

// Made is a server that was made once.
type Made struct{ ID, Token string }

// New starts a project, which ends with the test.
func New(t testing.TB, options Options) *Project {
	p := &Project{t: t, options: options, now: options.Now, tokens: map[string]bool{}, servers: map[string]*Server{},
		pairs: map[string]pair{}, things: map[string]*Thing{}, calls: map[string]int{}}
	if p.now == nil {
		p.now = time.Now
	}
	p.started = p.now()
	if p.options.Page == 0 {
		p.options.Page = 1000
	}
	if p.options.MaxServers == 0 {
		p.options.MaxServers = 100
	}
	if err := p.Play(options.Script); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /identity/v3/", p.identityVersion)
	mux.HandleFunc("GET /identity/", p.identityVersion)
	mux.HandleFunc("POST /identity/v3/auth/tokens", p.signIn)
	for pattern, do := range map[string]http.HandlerFunc{
		"GET /compute/v2.1/":                       p.computeVersion,
		"GET /compute/v2.1/servers/detail":         p.listServers,
		"POST /compute/v2.1/servers":               p.createServer,
		"GET /compute/v2.1/servers/{id}":           p.getServer,
		"DELETE /compute/v2.1/servers/{id}":        p.deleteServer,
		"POST /compute/v2.1/servers/{id}/metadata": p.setMetadata,
		"POST /compute/v2.1/servers/{id}/action":   p.act,
		"POST /compute/v2.1/os-keypairs":           p.createPair,
		"GET /compute/v2.1/os-keypairs":            p.listPairs,
		"GET /compute/v2.1/os-keypairs/{id}":       p.getPair,
		"DELETE /compute/v2.1/os-keypairs/{id}":    p.deletePair,
		"GET /compute/v2.1/flavors/detail":         p.listFlavors,
		"GET /compute/v2.1/os-availability-zone":   p.listZones,
		"GET /compute/v2.1/limits":                 p.limits,
		"GET /network/":                            version("2.0", "/network/v2.0/"),
		"GET /network/v2.0/networks":               p.listNetworks,
		"GET /network/v2.0/ports":                  p.listThings("port", "ports"),
		"GET /network/v2.0/ports/{id}":             p.getThing("port"),
		"DELETE /network/v2.0/ports/{id}":          p.deleteThing,
		"GET /network/v2.0/floatingips":            p.listThings("floatingip", "floatingips"),
		"GET /network/v2.0/floatingips/{id}":       p.getThing("floatingip"),
		"DELETE /network/v2.0/floatingips/{id}":    p.deleteThing,
		"GET /image/":                              version("2.9", "/image/v2/"),
		"GET /image/v2/images":                     p.listImages,
		"GET /image/v2/images/{id}":                p.getImage,
		"GET /volume/v3/":                          version("3.0", "/volume/v3/"),
		"GET /volume/v3/volumes/detail":            p.listThings("volume", "volumes"),
		"GET /volume/v3/volumes/{id}":              p.getThing("volume"),
		"DELETE /volume/v3/volumes/{id}":           p.deleteThing,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { p.serve(pattern, do, w, r) })
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	p.URL = s.URL + "/identity"
	return p
}

// CloudsFile writes a clouds.yaml with an application credential for this project.
func (p *Project) CloudsFile() string { return p.CloudsFileAt(p.URL) }

// CloudsFileAt is CloudsFile for callers who reach the identity service at another address, as through
// a proxy. The catalog names the services at the address that a caller has used.
func (p *Project) CloudsFileAt(identity string) string {
	p.t.Helper()
	file := filepath.Join(p.t.TempDir(), "clouds.yaml")
	text := fmt.Sprintf("clouds:\n  %s:\n    auth_type: v3applicationcredential\n    auth:\n      auth_url: %s/v3\n"+
		"      application_credential_id: abc\n      application_credential_secret: %s\n    region_name: RegionOne\n", Cloud, identity, secret)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// serve checks the token, and plays what the script and the refusals say of this call.
func (p *Project) serve(pattern string, do http.HandlerFunc, w http.ResponseWriter, r *http.Request) {
	defer p.stopDeleted()
	name := strings.Replace(strings.Replace(pattern, "/compute/v2.1", "", 1), "/network/v2.0", "", 1)
	p.mu.Lock()
	ok := p.tokens[r.Header.Get("X-Auth-Token")]
	if ok && p.strikesLocked("expire", subject{call: name}) {
		ok = false
		clear(p.tokens)
	}
	p.mu.Unlock()
	if !ok {
		standin.JSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}})
		return
	}
	if strings.Contains(pattern, "/compute/") && !strings.HasSuffix(pattern, "v2.1/") && r.Header.Get("OpenStack-API-Version") != "compute 2.69" {
		refused(w, http.StatusNotAcceptable, "computeFault", "Version is not supported by the API.")
		return
	}
	p.mu.Lock()
	p.calls[name]++
	p.mu.Unlock()
	if p.Answered(name, do, w, r) {
		return
	}
	p.mu.Lock()
	scripted := p.scriptedLocked(name)
	p.mu.Unlock()
	if scripted != nil {
		scripted(do, w, r)
		return
	}
	do(w, r)
}

// CreateServer is the call of a create, for Refuse, Lose and Calls. Other calls are written likewise.
const CreateServer = "POST /servers"

// Calls is how many calls there were.
func (p *Project) Calls(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls[call]
}

// Revoke ends all tokens. With forGood no new ones are given.
func (p *Project) Revoke(forGood bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.tokens)
	if forGood {
		p.tokens = nil
	}
}

// Books are the ids of the servers that are there, of the other things, and the names of key pairs.
func (p *Project) Books() (servers, things, pairs []string) {
	p.stopDeleted()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	for id := range p.servers {
		servers = append(servers, id)
	}
	for id := range p.things {
		things = append(things, id)
	}
	for name := range p.pairs {
		pairs = append(pairs, name)
	}
	slices.Sort(servers)
	slices.Sort(things)
	slices.Sort(pairs)
	return servers, things, pairs
}

// Ever are all servers that were ever made, in order: two of one token are a fault that Books do not
// show once one of them is gone.
func (p *Project) Ever() []Made {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ever)
}

func (p *Project) identityVersion(w http.ResponseWriter, r *http.Request) {
	version("3.14", "/identity/v3/")(w, r)
}

// version answers with the versions of a service.
func version(id, path string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		standin.JSON(w, http.StatusOK, map[string]any{"versions": []any{map[string]any{"id": "v" + id, "status": "CURRENT",
			"links": []any{map[string]any{"rel": "self", "href": "http://" + r.Host + path}}}}})
	}
}

func (p *Project) computeVersion(w http.ResponseWriter, r *http.Request) {
	standin.JSON(w, http.StatusOK, map[string]any{"version": map[string]any{"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1",
		"links": []any{map[string]any{"rel": "self", "href": "http://" + r.Host + "/compute/v2.1/"}}}})
}

// signIn takes the application credential and gives a token with the catalog.
func (p *Project) signIn(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Auth struct {
			Identity struct {
				Credential struct {
					ID, Secret string
				} `json:"application_credential"`
			}
		}
	}
	p.mu.Lock()
	open := p.tokens != nil
	p.mu.Unlock()
	if json.NewDecoder(r.Body).Decode(&q) != nil || q.Auth.Identity.Credential.Secret != secret || !open {
		standin.JSON(w, http.StatusUnauthorized, map[string]any{"error": map[string]any{"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}})
		return
	}
	p.mu.Lock()
	p.last++
	token := fmt.Sprintf("token-%d", p.last)
	p.tokens[token] = true
	p.mu.Unlock()
	var catalog []any
	services := p.options.Services
	if services == nil {
		at := "http://" + r.Host
		services = map[string]string{"compute": at + "/compute/v2.1", "network": at + "/network", "image": at + "/image", "block-storage": at + "/volume/v3"}
	}
	for kind, address := range services {
		catalog = append(catalog, map[string]any{"type": kind, "name": kind, "id": kind, "endpoints": []any{map[string]any{
			"id": kind, "interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": address}}})
	}
	w.Header().Set("X-Subject-Token", token)
	standin.JSON(w, http.StatusCreated, map[string]any{"token": map[string]any{"methods": []string{"application_credential"},
		"issued_at": stamp(p.now()), "expires_at": stamp(p.now().Add(time.Hour)), "catalog": catalog}})
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") }

// refused answers with an error as Nova's: an object whose name is the kind of error.
func refused(w http.ResponseWriter, status int, kind, message string) {
	standin.JSON(w, status, map[string]any{kind: map[string]any{"code": status, "message": message}})
}

// idLocked is a new id.
func (p *Project) idLocked() string {
	p.last++
	return fmt.Sprintf("00000000-0000-4000-8000-%012x", p.last)
}
