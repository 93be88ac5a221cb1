// Package hetzner is the driver of Hetzner Cloud: instances are its servers, offerings its server
// types by location.
//
// A server's name follows from owner and token, and names are unique in a project, so a create that
// is repeated meets the server that was made before. Labels are on the server from the first
// moment. The limit on calls is the tightest of all clouds, 3,600 an hour, so the driver remembers
// what lists and creates have shown and asks for the actions of many servers in one call.
//
// It must never touch a server without its owner's label, never repeat a create by itself, and never
// log user data. A server that is switched off costs as much as one that runs, so there is nothing
// to stop or suspend.
package hetzner
