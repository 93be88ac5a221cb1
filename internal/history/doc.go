// Package history keeps what the state forgets: jobs that have ended, and their attempts, in a file
// on disk. Each server has its own file, and all have the same content, because it is derived from
// the state alone.
//
// Nothing is lost between the state and the file. Rows leave the state only by facts that the reaper
// proposes, and it proposes them only for rows that the file has (see Store.Kept). So an ended job
// is in the state, or in the file, or in both. A writer that starts, after a crash or with an empty
// file, reads the ended rows of the state that changed after the last index that the file has, and
// follows the feed from there. Writing a row twice changes nothing.
//
// A job that is retried after its end is taken out of the ended ones, and comes back with all of its
// attempts when it ends again: it is never there twice.
//
// Store.Run is the only writer. Requests read in transactions of their own, which hold nothing up.
// Package history must never write facts.
package history
