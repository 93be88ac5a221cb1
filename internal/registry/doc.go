// Package registry makes, out of the server's own credentials, the right to
// pull one image: a token for that repository, which is all that a node gets.
//
// Only registries of the configuration are spoken to. For any other a grant is
// empty: the node asks there by itself and without credentials, so that nobody who
// names an image can send the server to an address of his choice.
//
// An entry may name an identity of a cloud instead of credentials. Then a login is got for it
// (package identities), used again until shortly before its end, and renewed.
//
// It must never hand a password to a node unless the configuration says so for
// that registry, nor log or return one in a sentence. The link calls it.
package registry
