package api

// ProviderCheck is the body of POST /v1/providers/{name}/check.
type ProviderCheck struct {
	Offering string   `json:"offering,omitempty" doc:"Offering to launch. Default: the cheapest available one."`
	Command  []string `json:"command,omitempty" doc:"Command to run there. Default: uname -a."`
	DryRun   bool     `json:"dry_run,omitempty" doc:"Launch nothing: say what the configuration stands for, as image, subnets, offerings with prices, and what is missing."`
	Timeout  Duration `json:"timeout,omitempty" zero:"10m" doc:"Time limit of launch, boot and run together. Default: 10m."`
}

// CheckProgress is a line of its answer, which is NDJSON. The last one has OK or
// a problem; an answer without either broke off.
type CheckProgress struct {
	Step    string   `json:"step" doc:"offers, create, boot, run, list, destroy or done. Of a dry run: what the line is about, as image, or problem."`
	Text    string   `json:"text"`
	OK      bool     `json:"ok,omitempty" doc:"Every step succeeded, and the instance is destroyed."`
	Problem *Problem `json:"problem,omitempty"`
}
