package azuretest

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/musterhq/muster/internal/cloud/standin"
)

// startLocked has what stands behind a machine started soon, stopLocked has it stopped.
func (c *Cloud) startLocked(name string) {
	if c.options.Machines != nil {
		c.starts = append(c.starts, name)
	}
}

func (c *Cloud) stopLocked(name string) {
	if c.options.Machines != nil {
		c.stops = append(c.stops, name)
	}
}

// attend starts and stops what is to be. It takes a while, so mu is not held.
func (c *Cloud) attend() {
	c.mu.Lock()
	starts, stops := c.starts, c.stops
	c.starts, c.stops = nil, nil
	documents := make([]string, len(starts))
	for i, name := range starts {
		if m := c.vms[name]; m != nil {
			documents[i] = m.create.Properties.OSProfile.CustomData
		}
	}
	c.mu.Unlock()
	for i, name := range starts {
		document, err := base64.StdEncoding.DecodeString(documents[i])
		if err != nil || len(document) == 0 {
			continue // it is gone already, or has no user data and so nobody could log in
		}
		address, err := c.options.Machines.Start(name, document)
		c.mu.Lock()
		switch m := c.vms[name]; {
		case m == nil || m.state == "Deleting" || m.power == "deallocated":
			// It was deleted or stopped meanwhile, and that found nothing to stop.
			stops = append(stops, name)
		case err != nil:
			m.state, m.power, m.why = "Failed", "", refused{"OSProvisioningInternalError", err.Error()}
		default:
			m.booted = true
			for _, kind := range []string{kindNIC, kindIP} {
				for _, p := range c.parts[kind] {
					if p.vm == name {
						p.address = address
					}
				}
			}
		}
		c.mu.Unlock()
	}
	for _, name := range stops {
		c.options.Machines.Stop(name)
	}
}

// dropLocked deletes a machine, with the parts that are to go with it.
func (c *Cloud) dropLocked(m *vm) {
	delete(c.vms, m.name)
	c.removePartsLocked(m)
	c.stopLocked(m.name)
}

// evictLocked stops or deletes a machine that was evicted, by its eviction policy.
func (c *Cloud) evictLocked(m *vm) {
	if m.create.Properties.Eviction == "Delete" {
		c.dropLocked(m)
		return
	}
	m.power, m.booted = "deallocated", false
	c.stopLocked(m.name)
}

// Take evicts a spot machine: a scheduled event says so now, and it ends after the time, which is 30
// seconds with Azure. It reports whether there is such a machine.
func (c *Cloud) Take(name string, in time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.vms[name]
	if m == nil || m.power != "running" || m.create.Properties.Priority != "Spot" {
		return false
	}
	m.evicted, m.ends = true, c.now().Add(in)
	if c.options.Machines != nil {
		time.AfterFunc(in, func() { c.Books() }) // settles
	}
	return true
}

// Notice says when a machine will be evicted.
func (c *Cloud) Notice(name string) (at time.Time, noticed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.vms[name]; m != nil {
		return m.ends, m.evicted
	}
	return at, false
}

// identityPath is where programs with a managed identity get access tokens, in the form of App Service:
// its address is in the environment.
const (
	identityPath   = "/msi/token"
	identitySecret = "azure-test-identity"
	identityAPI    = "2019-08-01"
)

// Environment is what gives a program the managed identity of this resource group. Endpoint is the
// address of the stand-in as the program sees it, as URL.
func (c *Cloud) Environment(endpoint string) []string {
	return []string{"IDENTITY_ENDPOINT=" + endpoint + identityPath, "IDENTITY_HEADER=" + identitySecret}
}

// signIn gives Token to a program that has the environment's secret.
func (c *Cloud) signIn(w http.ResponseWriter, r *http.Request) {
	if q := r.URL.Query(); r.Header.Get("X-IDENTITY-HEADER") != identitySecret || q.Get("api-version") != identityAPI || q.Get("resource") == "" {
		w.WriteHeader(http.StatusBadRequest)
		_ = json.NewEncoder(w).Encode(map[string]any{"statusCode": http.StatusBadRequest, "message": "no identity"})
		return
	}
	standin.JSON(w, http.StatusOK, map[string]string{"access_token": Token, "token_type": "Bearer", "resource": r.URL.Query().Get("resource"),
		"expires_on": strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)})
}
