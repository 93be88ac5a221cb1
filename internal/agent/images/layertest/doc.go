// Package layertest has what the tests of the node's image store and of the packages in it share:
// tars of layers that are short to write, and a description of what they became on the disk.
//
// Only tests may use it. It knows none of the packages that it helps to test.
package layertest
