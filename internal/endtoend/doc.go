// Package endtoend has no code, only benchmarks: each takes the real programs,
// starts a server with instances of the provider local as a user would, drives it by the Go client,
// and tells what a user would wait for and what it costs in processor time and memory.
//
// It must never reach into a server that it measures, nor be quick by leaving something out that users have:
// what is measured is durable, authenticated, and ends in real processes. Nobody calls it;
// `make bench` runs it. With -endtoend.bin DIR it takes programs that are there instead of building
// them: unstripped ones, for a profiler that looks at the whole machine meanwhile.
//
// Wall-clock figures need an idle machine; processor time per operation and the
// ratios to what was measured beside it in the same run are steadier. The target of each
// figure stands in the comment of its benchmark.
package endtoend
