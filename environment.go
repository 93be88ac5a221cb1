package muster

import "strings"

// JobEnvironment is the type of the job behind an environment: its members are
// runners, made as they are wanted and never run twice.
const JobEnvironment JobType = "environment"

// environmentMark begins the name of the job behind an environment. No user can
// give a job such a name, so that both have names of their own.
const environmentMark = "env:"

// EnvironmentKey is the key of the job behind an environment.
func EnvironmentKey(namespace Namespace, name string) JobKey {
	return JobKey{Namespace: namespace, Name: environmentMark + name}
}

// Environment is the environment's name, if the key is that of the job behind one.
func (k JobKey) Environment() (name string, is bool) {
	return strings.CutPrefix(k.Name, environmentMark)
}
