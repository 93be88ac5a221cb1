// Package warm decides how many runners an environment keeps ready, which are
// made and which are ended, and says why.
//
// It is pure: a row, what claims did lately, and a time in, a decision out. It must never count a
// claimed runner as surplus. The loop internal/control/runners calls it.
package warm
