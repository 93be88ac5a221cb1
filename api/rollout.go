package api

import "time"

// Rollout tells how far a service or system job is in running what it says.
type Rollout struct {
	Stage   string     `json:"stage" enum:"rolling,done,failed" doc:"rolling: members are being replaced, or the first one must become healthy. done: every member runs the version and was healthy. failed: members did not become healthy; no other is replaced until the job is submitted again."`
	Version uint64     `json:"version" doc:"The oldest version with the same running configuration as the current one."`
	Began   time.Time  `json:"began"`
	Ended   *time.Time `json:"ended,omitempty"`
	Reason  string     `json:"reason,omitempty" doc:"Why it failed."`
	Stable  uint64     `json:"stable,omitempty" doc:"The newest version whose rollout completed."`
	Reverts uint64     `json:"reverts,omitempty" doc:"The version to which the current one reverts."`
	Note    string     `json:"note,omitempty" doc:"Why the current version was submitted, if stated."`

	Wanted    int `json:"wanted" doc:"Members."`
	Updated   int `json:"updated" doc:"Members that run the current version."`
	Healthy   int `json:"healthy" doc:"Healthy members of the current version."`
	Available int `json:"available" doc:"Healthy members of any version."`
}

// JobVersion is a version that a job has or had.
type JobVersion struct {
	Version   uint64    `json:"version"`
	Submitted time.Time `json:"submitted"`
	Current   bool      `json:"current,omitempty"`
	Rollout   string    `json:"rollout,omitempty" enum:"rolling,done,failed" doc:"Its result: done: it was healthy. rolling: another version was submitted first. Of service and system jobs."`
	Reason    string    `json:"reason,omitempty" doc:"Why it failed."`
	Note      string    `json:"note,omitempty" doc:"Why it was submitted, if stated."`
	Spec      *JobSpec  `json:"spec" doc:"With defaults filled in."`
}

// JobHistory lists the versions of a job that are remembered, the newest first.
type JobHistory struct {
	Versions []JobVersion `json:"versions"`
	Index    uint64       `json:"index" doc:"Log index of this view."`
}

// JobScale is the body of POST /v1/jobs/{namespace}/{name}/scale.
type JobScale struct {
	Count     int     `json:"count" minimum:"1" maximum:"1000000" doc:"Desired number of members."`
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the job is at this version."`
	Reason    string  `json:"reason,omitempty" maxLength:"200"`
}

// JobRevert is the body of POST /v1/jobs/{namespace}/{name}/revert.
type JobRevert struct {
	Version   uint64  `json:"version,omitempty" doc:"The version to revert to. Default: the newest healthy one before the current."`
	IfVersion *uint64 `json:"if_version,omitempty" doc:"Refuse unless the job is at this version."`
	Reason    string  `json:"reason,omitempty" maxLength:"200"`
}
