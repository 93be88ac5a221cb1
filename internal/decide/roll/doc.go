// Package roll decides how the members of a standing job (type service or system) come to run what the job
// says now: which of them end next so that they are started in its new version, or leave a node that drains, and
// when that goes no further. It also says how many members a system job wants.
//
// It must never take more members away at a time than the job allows, and never start one: members
// that have ended are placed by package place, in the version that the job has then.
//
// control/roll calls it for each job that changes; the API shows its Progress.
package roll
