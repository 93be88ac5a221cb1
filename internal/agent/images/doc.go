// Package images is the node's image store: it gets images from their sources (package source),
// unpacks their layers (package unpack), and keeps them, by diff id, for as long as there is room.
//
// Each layer is unpacked for itself, once, in the form that the kernel's overlay file system wants,
// so that images share layers and a sandbox needs only a mount. What is in use is never deleted and
// never changed.
//
// It must never trust what it is given: the store compares the diff id of each layer with what was
// unpacked, and bounds how much is kept. It must never print a credential, nor a URL, which may
// carry one. It mounts nothing and runs nothing.
//
// In its directory:
//
//	l/NAME        an unpacked layer; the name is short and used once only
//	r/NAME        the record of that layer. A layer without one is rubbish
//	b/HEX         a manifest or configuration, by its digest
//	i/HEX-SHIFT   an image: its manifest, configuration and layers
//	t/HEX         what a reference (hashed) was resolved to, and when
//	tmp/          what is being written. Rubbish after a restart
//
// Everything is written in tmp and renamed into place, the record last, so a process killed at any
// time leaves rubbish only in places that New cleans.
//
// The agent calls New once, Hold for each sandbox that an earlier agent left, and then Open for
// each sandbox that it starts.
package images
