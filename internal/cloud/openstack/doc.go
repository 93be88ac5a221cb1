// Package openstack is the driver of OpenStack clouds: instances are Nova's servers, offerings its
// flavors by availability zone.
//
// Nova knows no token of a create, and names are not unique. So the driver names a server by owner
// and token and looks for the name first. Between servers of Muster that create at the same time a
// key pair is the lock: names of key pairs are unique for a user. All tags are in the server's
// metadata from the first moment; its tags in Nova's sense are for people who list servers.
//
// Nova accepts first and places later, so most refusals show as a server in status ERROR. Cells that
// do not answer show as servers in status UNKNOWN: a list with one of them is not complete.
//
// It must never touch a server without its owner's metadata, never repeat a create by itself, and
// never log user data. It makes no ports, volumes or floating addresses of its own.
package openstack
