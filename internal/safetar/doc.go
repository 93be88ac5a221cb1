// Package safetar reads tars that strangers have made, for those who unpack them: the program init
// and muster cp. It holds the rules that do not depend on where files are made: no name may lead
// out of the directory, no entry may be a sparse file, and what is kept of a tar in memory is
// bounded.
//
// The package makes no files and looks at none. A clean name may still lead through a symbolic link
// that is there, or that the same tar has made: to follow none is the duty of the caller. So is the
// choice of what symbolic links, owners and special files a tar may make, because a sandbox takes
// all that its own programs could make, and the host of an operator does not.
//
// The image store unpacks layers by rules of their own, and shares Clean.
package safetar
