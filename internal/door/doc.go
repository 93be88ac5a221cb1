// Package door is what every request passes before its handler, and every answer behind it: it
// checks Host, Origin and token, lets holders of claims to their runners and nowhere else, notes
// the use of runners, reads JSON bodies whole and strictly, counts and logs requests, answers for
// handlers that panic, and gives each step of a stream its time.
//
// It must never know what a request means: that is the handlers' business. internal/httpapi
// registers its routes in it; the APIs of other systems (internal/compat/*) are mounted in it below
// their own prefixes. internal/server makes it.
package door
