// Package submit takes in what users want to run: jobs, and environments whose runners are claimed.
// It gives a submission its defaults, checks it against the operator's policies and limits and
// against what was uploaded, and proposes it; it also tries a submission dry, stops jobs, scales
// and reverts services, and deletes environments. It is the service behind every transport.
//
// It must never place anything, or answer from anything but the state and what it was given.
// internal/httpapi and internal/compat/* use it; internal/server makes it.
package submit
