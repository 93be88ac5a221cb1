// Package files does what clients ask about files of a sandbox: it lists, reads, writes and deletes
// files, makes directories, and packs and unpacks tars.
//
// Init itself does these operations. In a container it can do more there than the programs inside
// can. What must hold against a program that changes links and directories under an operation:
//
//   - In a container, its root is the root of every path, because init lives in it. So the worst that
//     such a program gets is an operation on another file of its own container.
//   - Nothing of init itself comes out: no path leads through a magic link of proc, and what proc has
//     of init's own threads is refused (path.go).
//   - Trees are deleted, listed, packed and unpacked by descriptors, from directory to directory, and
//     no link in them is followed. A file is replaced by a rename, never opened to be written.
//   - Nothing blocks on opening: only regular files are opened, and never so that it could wait.
//
// In a sandbox without a root of its own (runtime process), a path means what it means to the
// command, which has the same rights on the node: links are followed wherever the kernel follows
// them, and only the trees are safe from links.
//
// The package must never grow with the size of a file or of a tree, and never hold a slot of its
// gate, or a user's rights, while it waits for its client. Package sandbox hands operations over to
// it.
package files
