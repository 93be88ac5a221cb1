// Package sandboxtest has what the tests of internal/sandbox and of the packages in it share:
// connections, contents that tell where they belong, tars made by archive/tar, and checks of
// errors.
//
// Only tests may use it. It knows the packages system and internal/wire/init, so that tests of all
// others can use it.
package sandboxtest
