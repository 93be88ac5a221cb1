package cli

import "testing"

func TestSplitMember(t *testing.T) {
	for name, want := range map[string]struct {
		job   string
		index int
	}{"web/3": {"web", 3}, "team/web/0": {"team/web", 0}} {
		if job, index, ok := SplitMember(name); !ok || job != want.job || index != want.index {
			t.Errorf("%s: %q, %d, %v", name, job, index, ok)
		}
	}
	for _, name := range []string{"web", "team/web", "web/-1", "web/", ""} {
		if _, _, ok := SplitMember(name); ok {
			t.Errorf("%s is taken for a member", name)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"default/web", "team/train-resnet", "u-0-1"}
	for name, want := range map[string]string{
		"default/wbe": "default/web", "team/train": "team/train-resnet", "team/trian-resnet": "team/train-resnet", "other": "", "u-1-0": "", "u-0-2": "u-0-1",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestJobKey(t *testing.T) {
	for _, tt := range []struct{ flag, name, want string }{
		{"", "web", "web"}, {"", "team/web", "team/web"}, {"team", "web", "team/web"}, {"team", "team/web", "team/web"},
		{"other", "team/web", ""}, {"", "team/web/1", ""}, {"", "", ""}, {"", "We b", ""},
	} {
		key, err := (&App{Namespace: tt.flag}).JobKey(tt.name)
		switch {
		case tt.want == "" && err == nil, tt.want != "" && (err != nil || key.String() != tt.want):
			t.Errorf("%q with --namespace %q: %q, %v", tt.name, tt.flag, key, err)
		}
	}
}
