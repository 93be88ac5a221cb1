package gcetest

import (
	"time"
)

// userData is what an instance was made with.
func (m *machine) userData() []byte {
	metadata, _ := m.v["metadata"].(object)
	items, _ := metadata["items"].([]any)
	for _, i := range items {
		if item := i.(object); item["key"] == "user-data" {
			text, _ := item["value"].(string)
			return []byte(text)
		}
	}
	return nil
}

// attend starts and stops the machines that are to be. It takes a while, so mu is not held.
func (c *Cloud) attend() {
	c.mu.Lock()
	starts, stops := c.starts, c.stops
	c.starts, c.stops = nil, nil
	documents := make([][]byte, len(starts))
	for i, id := range starts {
		if m := c.instances[id]; m != nil {
			documents[i] = m.userData()
		}
	}
	c.mu.Unlock()
	for i, id := range starts {
		if documents[i] == nil {
			continue // it is gone already, or has no user data and so nobody could log in
		}
		address, err := c.behind.Start(id, documents[i])
		c.mu.Lock()
		switch m := c.instances[id]; {
		case m == nil || m.v["status"] == "STOPPING" || m.v["status"] == "TERMINATED":
			// It was deleted or stopped meanwhile, and that found no machine to stop.
			stops = append(stops, id)
		case err != nil:
			m.is("TERMINATED")
		default:
			m.booted = true
			nic := m.v["networkInterfaces"].([]any)[0].(object)
			nic["networkIP"] = address
			if external, _ := nic["accessConfigs"].([]any); len(external) > 0 {
				external[0].(object)["natIP"] = address
			}
		}
		c.mu.Unlock()
	}
	for _, id := range stops {
		c.behind.Stop(id)
	}
}

// stopLocked has the machine of an instance stopped soon.
func (c *Cloud) stopLocked(id string) {
	if c.behind != nil {
		c.stops = append(c.stops, id)
	}
}

// dropLocked deletes an instance, and its disk if that is to go with it.
func (c *Cloud) dropLocked(id string, m *machine) {
	delete(c.instances, id)
	c.stopLocked(id)
	for _, d := range m.v["disks"].([]any) {
		if d.(object)["autoDelete"] == true {
			delete(c.disks, id)
		} else if disk := c.disks[id]; disk != nil {
			delete(disk, "users")
		}
	}
}

// preemptLocked stops or deletes an instance that was preempted, by its termination action.
func (c *Cloud) preemptLocked(id string, m *machine) {
	if s, _ := m.v["scheduling"].(object); s["instanceTerminationAction"] == "DELETE" {
		c.dropLocked(id, m)
		return
	}
	m.is("TERMINATED")
	m.booted = false
	c.stopLocked(id)
}

// Take preempts a spot instance: its metadata service says so now, and it ends after the time, which
// is 30 seconds with Google. It reports whether there is such an instance.
func (c *Cloud) Take(id string, in time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.instances[id]
	if m == nil || m.v["status"] != "RUNNING" {
		return false
	}
	if s, _ := m.v["scheduling"].(object); s["provisioningModel"] != "SPOT" {
		return false
	}
	m.preempted, m.ends = true, c.now().Add(in)
	if c.behind != nil {
		time.AfterFunc(in, func() { c.Books() }) // settles
	}
	return true
}

// Notice says whether an instance is being preempted, and when it ends. Google's metadata service says
// only the first.
func (c *Cloud) Notice(id string) (at time.Time, noticed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.instances[id]; m != nil {
		return m.ends, m.preempted
	}
	return at, false
}
