// Package mend says what to do about nodes that are stuck, lost or unknown:
// launches whose answer never came, boots that take too long, instances that
// vanished, instances that nobody remembers, destroys that are not confirmed.
//
// It must never take absence from one list, or from one that is not complete, for
// proof that an instance is gone: only lists asked for after the last sign of life count, all of
// them for a second at least, and for ten where nothing but lists would have work given up. A list that
// lacks a node that is in contact proves nothing about any other. It is pure. The fleet loop lists, asks it, and carries out.
package mend
