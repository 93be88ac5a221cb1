// Package unpack turns the tar of an image's layer into a directory, in the form that the kernel's
// overlay file system wants: whiteouts as character devices 0/0, opaque directories by an extended
// attribute. It also measures such a directory, so that a later process can tell whether it is
// still what it was.
//
// A layer is a stranger's. No entry may reach outside of the directory, not by its name, not by a
// link, not by a hard link; the number of entries, the bytes and the names that are kept in memory
// are bounded; device nodes are left out, and owners stay in the range of the node's user
// namespace. The package asks for room before it writes. It deletes nothing outside of the
// directory, which nobody else may use meanwhile.
//
// The image store uses it.
package unpack
