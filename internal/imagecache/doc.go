// Package imagecache keeps what nodes pull from registries, so that a fleet pulls each part of an
// image once. The grant that a node gets for a reference says by which digest the server has the
// image, and the link sends the node its manifests, configuration and layers. Nodes get no
// credentials for it. What is not here is downloaded when the first node asks for it, once for all that ask,
// and sent on while it comes.
//
// Only registries of the configuration are cached: nobody who names an image may send the server to
// an address of his choice. What was pulled from one repository is served for that repository only,
// after its registry has shown the image within the configured time, and to the credentials of the
// namespace that asks: a digest alone opens nothing. Bytes are stored once for all namespaces.
// While the registry does not answer, what is here still serves.
//
// It must never serve bytes that have not their digest once they are stored, hold a layer in
// memory, or fill the disk beyond its size. If it cannot keep an image, nodes pull it themselves.
// internal/server makes it; the link calls it.
package imagecache
