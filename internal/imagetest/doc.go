// Package imagetest makes images for tests, without any network: busybox as a
// whole small system, a Debian one with Python, and images with whatever a test wants
// to be in them, good or evil. It serves them from a registry in the test's own process that can ask for a login and can
// be made to fail, writes them as layout directories and as archives, and unpacks them the way a node's
// image store leaves them, for tests of runtimes that have none.
//
// It must never be linked into anything that is shipped, nor reach for the network except for the packages of
// Debian's system. Where a part is not to be had (busybox-static, mmdebstrap, a mirror of packages) the test is skipped with a sentence.
// Tests of images, of runtimes and of the whole call it.
package imagetest
