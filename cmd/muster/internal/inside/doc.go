// Package inside has the commands that reach into running sandboxes: muster exec, muster port and
// muster top.
//
// A command that runs inside has the user's terminal for a while. The terminal's
// state is always restored, also when the connection breaks or a goroutine panics. The package must
// never read files of a sandbox (that is transfer) or change a job.
//
// Package runners uses its executor for muster x; the program has its commands.
package inside
