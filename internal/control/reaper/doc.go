// Package reaper deletes what has ended: jobs after their retention, with everything stored of
// them; nodes that went long ago; the output of the oldest ended jobs when the blob store is above
// its quota; and uploads to which no job refers.
//
// It must never touch anything live. It deletes blobs before it commits the fact that forgets their
// owner. If it is killed in between, the next sweep finds the owner again and continues. The server
// runs it for as long as it leads.
package reaper
