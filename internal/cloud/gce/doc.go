// Package gce is the driver of Google Compute Engine: instances are virtual machines of one project,
// offerings its machine types by zone and market.
//
// An instance's name follows from owner and token, and names are unique in a zone, so a create that
// is repeated meets the instance that was made before. Its id is zone/name: nothing finds an
// instance without its zone. A create is answered with an operation, and the refusal may come in
// either of the two, so both are judged by one table.
//
// It must never touch an instance without its owner's label, never repeat a create by itself, and
// never log user data. Instances get no service account: nothing on a node can call the cloud.
//
// Sources: Google's discovery document for compute v1, and the guide's pages on API rate limits,
// Spot VMs, guest attributes, and suspending and limiting the run time of instances.
package gce
