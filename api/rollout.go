package api

import "time"

// Rollout tells how far a service or system job is in running what it says.
type Rollout struct {
	Stage   string     `json:"stage" enum:"rolling,done,failed" doc:"rolling: members are given the version a few at a time, or the first one proves itself. done: each member has run it for long enough. failed: members would not run; no other is given the version until the job is submitted again."`
	Version uint64     `json:"version" doc:"The first version that runs like the present one."`
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"`
	Reason  string     `json:"reason,omitempty" doc:"Why it failed."`
	Stable  uint64     `json:"stable,omitempty" doc:"The newest version that was rolled out to the end."`
	Reverts uint64     `json:"reverts,omitempty" doc:"The version that the present one goes back to."`
	Note    string     `json:"note,omitempty" doc:"Why the present version was submitted, if that was said."`

	Wanted    int `json:"wanted" doc:"Members."`
	Updated   int `json:"updated" doc:"Members that run as the job says now."`
	Healthy   int `json:"healthy" doc:"Members of those that are healthy."`
	Available int `json:"available" doc:"Members that are healthy in whatever version."`
}

// JobVersion is a version that a job has or had.
type JobVersion struct {
	Version   uint64    `json:"version"`
	Submitted time.Time `json:"submitted"`
	Current   bool      `json:"current,omitempty"`
	Rollout   string    `json:"rollout,omitempty" enum:"rolling,done,failed" doc:"What became of it: done: it was healthy. rolling: another version came before that. Of service and system jobs."`
	Reason    string    `json:"reason,omitempty" doc:"Why it failed."`
	Note      string    `json:"note,omitempty" doc:"Why it was submitted, if that was said."`
	Spec      *JobSpec  `json:"spec" doc:"With defaults filled in."`
}

// JobHistory lists the versions of a job that are remembered, the newest first.
type JobHistory struct {
	Versions []JobVersion `json:"versions"`
	Index    uint64       `json:"index" doc:"Log index of this view."`
}

// JobScale is the body of POST /v1/jobs/{namespace}/{name}/scale.
type JobScale struct {
	Count     int     `json:"count" minimum:"1" maximum:"1000000" doc:"How many members the service shall have."`
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the job is at this version."`
	Reason    string  `json:"reason,omitempty" maxLength:"200"`
}

// JobRevert is the body of POST /v1/jobs/{namespace}/{name}/revert.
type JobRevert struct {
	Version   uint64  `json:"version,omitempty" doc:"The version to go back to. Default: the newest before the present one that was healthy."`
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the job is at this version."`
	Reason    string  `json:"reason,omitempty" maxLength:"200"`
}
