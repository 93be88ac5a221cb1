package api

import "time"

// EndedJob is a job in the history: one that has ended, under a name that others may have had since.
type EndedJob struct {
	ID         string    `json:"id" doc:"The job's uid."`
	Namespace  string    `json:"namespace"`
	Name       string    `json:"name"`
	Version    uint64    `json:"version" doc:"Its last version."`
	Type       string    `json:"type"`
	Status     string    `json:"status" enum:"succeeded,failed,stopped"`
	Reason     string    `json:"reason,omitempty" doc:"Why it ended."`
	Submitted  time.Time `json:"submitted"`
	Ended      time.Time `json:"ended"`
	Count      int       `json:"count"`
	Succeeded  int       `json:"succeeded" doc:"Members that succeeded."`
	Failed     int       `json:"failed" doc:"Members that failed."`
	Stopped    int       `json:"stopped" doc:"Members that were stopped."`
	Attempts   int64     `json:"attempts" doc:"Attempts of all members."`
	ExitCode   *int      `json:"exit_code,omitempty" doc:"Exit code of the attempt that ended last."`
	Signal     string    `json:"signal,omitempty" doc:"Signal that ended the attempt that ended last."`
	RunSeconds float64   `json:"run_seconds" doc:"How long its attempts ran, added up."`
	// What it used is not known of all attempts.
	CPUSeconds      float64  `json:"cpu_seconds,omitempty" doc:"CPU time of its attempts, added up; absent if it is not known."`
	CPUEfficiency   float64  `json:"cpu_efficiency,omitempty" doc:"CPU time as a part of the CPU requested while the attempts ran: 1 is all of it. Attempts whose CPU time is not known are left out."`
	PeakMemory      int64    `json:"peak_memory,omitempty" doc:"Most memory of one attempt, in bytes; absent if it is not known."`
	MemoryRequested int64    `json:"memory_requested,omitempty" doc:"Memory requested for each member, in bytes."`
	Cost            float64  `json:"cost,omitempty" doc:"What its attempts' shares of nodes cost."`
	Image           string   `json:"image,omitempty"`
	Command         []string `json:"command,omitempty" doc:"The beginning of its command, about 1,000 bytes."`
}

// History is a page of ended jobs, the newest first.
type History struct {
	Jobs []EndedJob `json:"jobs"`
	Next string     `json:"next,omitempty" doc:"Pass it as after= for the next page; empty on the last page. A page may have fewer jobs than its limit, or none, and be followed by another."`
}

// EndedAttempt is an attempt in the history.
type EndedAttempt struct {
	ID         string     `json:"id" doc:"Id of the allocation."`
	Index      int        `json:"index"`
	Attempt    int        `json:"attempt"`
	Version    uint64     `json:"version"`
	Node       string     `json:"node"`
	Outcome    string     `json:"outcome" enum:"succeeded,failed,stopped,lost"`
	ExitCode   *int       `json:"exit_code,omitempty"`
	Signal     string     `json:"signal,omitempty"`
	Reason     string     `json:"reason,omitempty" doc:"Why it did not succeed."`
	CPUSeconds float64    `json:"cpu_seconds,omitempty" doc:"Absent if it is not known."`
	PeakMemory int64      `json:"peak_memory,omitempty" doc:"In bytes; absent if it is not known."`
	Cost       float64    `json:"cost,omitempty"`
	Placed     time.Time  `json:"placed"`
	Started    *time.Time `json:"started,omitempty"`
	Ended      time.Time  `json:"ended"`
}

// EndedJobDetail is a job in the history with a page of its attempts, by member and attempt.
type EndedJobDetail struct {
	Job      EndedJob       `json:"job"`
	Attempts []EndedAttempt `json:"attempts"`
	Next     string         `json:"next,omitempty" doc:"Pass it as after= for the next page of attempts; empty on the last page."`
}
