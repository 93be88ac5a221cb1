// Package reaper forgets what has ended: jobs after their retention with
// everything stored of them, nodes that are long gone, the output of the oldest
// ended jobs when the blob store is over its quota, and uploads that no job
// refers to.
//
// It must never touch anything live, and it deletes blobs before the fact that
// forgets whose they were: killed in between, it finds the job again and goes on. The
// server runs it for as long as it leads.
package reaper
