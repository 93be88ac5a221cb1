package api

import (
	"strings"
	"testing"
	"time"
)

func TestEnvironmentDefaults(t *testing.T) {
	s := &EnvironmentSpec{Name: "python", Template: Template{Image: "python:3.13"}}
	s.Defaults()
	if *s.Warm.Min != 1 || s.Warm.Max != DefaultWarmMax || *s.TTL != DefaultTTL || *s.Idle != DefaultIdle || s.Network != "none" || len(s.Command) == 0 {
		t.Fatalf("defaults are %+v", s)
	}
	again := s.Clone()
	again.Defaults()
	if !s.Equal(again) {
		t.Fatal("defaults twice are not defaults once")
	}
	if p := s.Validate(); len(p) > 0 {
		t.Fatalf("an environment with nothing but defaults is wrong: %v", p)
	}
	// An entrypoint of the image would stand before the command that keeps the runner ready.
	if j := s.Job(); len(j.Entrypoint) != 1 || j.Entrypoint[0] != "" {
		t.Fatalf("the entrypoint is %q", j.Entrypoint)
	}
	three := 3
	more := s.Clone()
	more.Warm.Min = &three
	if s.Equal(more) || !s.Job().Equal(more.Job()) {
		t.Fatal("the number of warm runners is part of the environment, and not of how a runner runs")
	}
	process := &EnvironmentSpec{Name: "p"}
	process.Defaults()
	if p := process.Validate(); len(p) > 0 {
		t.Fatalf("a process environment with nothing but defaults is wrong: %v", p)
	}
}

func TestEnvironmentProblems(t *testing.T) {
	n := func(v int) *int { return &v }
	d := func(v Duration) *Duration { return &v }
	for where, edit := range map[string]func(*EnvironmentSpec){
		"name":          func(s *EnvironmentSpec) { s.Name = "" },
		"warm.min":      func(s *EnvironmentSpec) { s.Warm = WarmSpec{Min: n(4), Max: 3} },
		"warm.max":      func(s *EnvironmentSpec) { s.Warm.Max = MaxWarm + 1 },
		"warm.target":   func(s *EnvironmentSpec) { s.Warm = WarmSpec{Target: n(4), Max: 3} },
		"ttl":           func(s *EnvironmentSpec) { s.TTL = d(-1) },
		"idle":          func(s *EnvironmentSpec) { s.Idle = d(MaxClaimTime + 1) },
		"alert.below":   func(s *EnvironmentSpec) { s.Alert.Below = 2 },
		"alert.for":     func(s *EnvironmentSpec) { s.Alert.For = Duration(-time.Second) },
		"resources.cpu": func(s *EnvironmentSpec) { s.Resources.CPU = -1 },
		"network":       func(s *EnvironmentSpec) { s.Network = "bridge" }, // without an image
		"priority":      func(s *EnvironmentSpec) { s.Priority = n(101) },

		"isolation":      func(s *EnvironmentSpec) { s.Isolation = "container" }, // without an image
		"runtime":        func(s *EnvironmentSpec) { s.Image, s.Runtime = "a", "no such/thing" },
		"ready.command":  func(s *EnvironmentSpec) { s.Ready = &ReadySpec{} },
		"ready.interval": func(s *EnvironmentSpec) { s.Ready = &ReadySpec{Command: []string{"true"}, Interval: 1} },
		"ready.timeout":  func(s *EnvironmentSpec) { s.Ready = &ReadySpec{Command: []string{"true"}, Timeout: -1} },
		"ready.give_up":  func(s *EnvironmentSpec) { s.Ready = &ReadySpec{Command: []string{"true"}, GiveUp: MaxTimeout + 1} },
	} {
		s := &EnvironmentSpec{Name: "e"}
		edit(s)
		found := false
		problems := s.Validate()
		for _, p := range problems {
			found = found || strings.HasPrefix(p.Location, where)
		}
		if !found {
			t.Errorf("%s is wrong, told was %v", where, problems)
		}
	}
}

// Only what the file says is wrong is reported: a maximum that follows from the minimum is not.
func TestWarmMaxFromMinIsNotReported(t *testing.T) {
	n := MaxWarm + 1
	for _, w := range []WarmSpec{{Min: &n}, {Target: &n}} {
		s := &EnvironmentSpec{Name: "e", Warm: w}
		s.Defaults()
		for _, p := range s.Validate() {
			if p.Location == "warm.max" {
				t.Errorf("min %v, target %v: %v", w.Min, w.Target, p)
			}
		}
	}
}
