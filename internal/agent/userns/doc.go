// Package userns makes the user namespace in which the agent of an ordinary user is root.
//
// There the agent mounts the layers of images, gives files to other ids and makes networks, as root
// of the machine does elsewhere. Outside, the root of the namespace is the user who started it, and
// has the rights of this user and no others.
//
// It must never ask for more rights than the user has: other ids come from newuidmap and newgidmap,
// which give what the administrator wrote into /etc/subuid and /etc/subgid. The packages
// agent/rootless, agent/teardown and agent/journal use it, and the server, which says at its start
// what works on its host.
package userns
