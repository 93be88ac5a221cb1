// Package driver has what the drivers of several clouds share: how an HTTP answer becomes a kind of
// fault, how a call that its context cut short is judged, globs of instance types, an operator's
// prices, names that follow from an intent, tags, calls of a batch at the same time, and values that
// are read seldom.
//
// It must never call a cloud and never decide what to create. Only the packages below
// internal/cloud use it.
package driver
