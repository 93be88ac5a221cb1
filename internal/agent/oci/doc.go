// Package oci is the runtime "oci": a sandbox is a container that an OCI runtime program (crun, else runc, or another by
// name) makes from an image on this node, with a muster-init as its process 1.
//
// It must never mount anything in the host's mount namespace, never need the runtime program again once a
// sandbox runs, and never keep anything that is needed later anywhere but in the sandbox's directory. All that is not
// about containers is in packages initbox and cgroup. The agent core uses it through contract.Runtime.
//
// # How one comes to life
//
// A thread of its own unshares its mount namespace, which no other process ever sees, and in it makes a stage: a small
// tmpfs with the files that the container gets of its own (resolv.conf, hosts, hostname), the writable layer, and the overlay of it and
// the image. It starts the program there, in the sandbox's cgroup, and then ends, and the namespace with it. What the
// container needs lives on in the container's own namespace and dies with its last process. So nothing is left behind by
// whoever is killed at whatever moment, and a start costs the same however many sandboxes there are.
//
// The writable layer is a file system in a sparse file, on a loop device that frees itself with its last user: a true limit of disk. Where that is not to be had it is a tmpfs
// of the size that was asked for, else a plain directory, and Problems says so.
//
// # The end
//
// A sandbox is ended by killing its cgroup. The programs' own delete is never called: their state is deleted right after the start.
package oci
