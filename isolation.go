package muster

import (
	"regexp"
	"slices"
	"strings"
)

// Isolation is how much lies between what runs in a sandbox and its node: one of those below, or the name of the
// program that makes the sandbox, as "runsc", if that is of a kind of its own. Nodes tell theirs for allocations with an image
// as the attribute AttributeIsolation; who demands one is never run with less.
type Isolation string

// Kinds of isolation, each with all that the ones before it have.
const (
	// IsolationProcess: processes of the node, with limits.
	IsolationProcess Isolation = "process"
	// IsolationContainer: namespaces, dropped capabilities and filtered system calls; root inside is the node's root, without its rights.
	IsolationContainer Isolation = "container"
	// IsolationUserNamespace: and a user namespace, in which nobody is a user that the node has.
	IsolationUserNamespace Isolation = "container-userns"
)

// AttributeIsolation is the attribute of nodes with the Isolation of their containers.
const AttributeIsolation = "isolation"

var isolations = [...]Isolation{IsolationProcess, IsolationContainer, IsolationUserNamespace}

// Needs are the conditions on a node's attributes that a container that demands this isolation has. The agent looks
// again when it starts one.
func (i Isolation) Needs() []Constraint {
	switch i {
	case "", IsolationProcess:
		return nil
	case IsolationContainer:
		return []Constraint{{Attribute: AttributeIsolation, Op: OpIsSet}, {Attribute: AttributeIsolation, Op: OpNotEqual, Value: string(IsolationProcess)}}
	}
	return []Constraint{{Attribute: AttributeIsolation, Op: OpEqual, Value: string(i)}}
}

// Gives reports whether this isolation is at least the one that is demanded. A program of a kind of its own gives
// what a container gives, and itself: whether it is more than another is for whoever demands it to know.
func (i Isolation) Gives(demanded Isolation) bool {
	if demanded == "" || i == demanded {
		return true
	}
	has, want := slices.Index(isolations[:], i), slices.Index(isolations[:], demanded)
	if has < 0 {
		has = slices.Index(isolations[:], IsolationContainer)
	}
	return i != "" && want >= 0 && has >= want
}

// RuntimePrograms are the names of programs that make containers and can be named without their path.
func RuntimePrograms() []string { return []string{"crun", "runc", "runsc"} }

// RuntimeNeeds is the condition on a node's attributes of who names the program that makes its containers.
func RuntimeNeeds(program string) Constraint {
	return Constraint{Attribute: AttributeContainers, Op: OpRegexp, Value: "^" + regexp.QuoteMeta(program) + "( |$)"}
}

// IsRuntime reports whether a runtime that calls itself this ("crun 1.8.1") is the program of a name.
func IsRuntime(version, program string) bool {
	name, _, _ := strings.Cut(version, " ")
	return name == program
}
