package present

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/state"
)

// JobSelection chooses a page of jobs. Zero fields choose all.
type JobSelection struct {
	Namespace muster.Namespace
	Stage     muster.JobStage
	// Status is what api.JobStatus says of a job.
	Status string
	// Newest sorts by submission, the newest first; otherwise the order is by namespace and name.
	Newest bool
	// After is Next of the page before.
	After string
	// Limit is the most jobs of the page, at least 1.
	Limit int
}

// JobPage is a page of rows. Next is passed as After for the page behind it; it is "" on the last.
type JobPage struct {
	Rows []*state.Job
	Next string
	// Left is how many more jobs the selection has behind the page. It is counted for the order by
	// submission only, where all are looked at anyway.
	Left int
}

// Jobs lists jobs, without environments. Pages of different snapshots fit together: a job that is
// there all the time is on exactly one of them.
func Jobs(snap *state.Snapshot, s JobSelection) (*JobPage, error) {
	if s.Newest {
		return newestJobs(snap, s)
	}
	after, err := cutJobKey(s.After, s.After)
	if err != nil {
		return nil, err
	}
	if s.Namespace != "" && after.Namespace < s.Namespace {
		after = muster.JobKey{Namespace: s.Namespace} // the first of it has a longer name
	}
	page := &JobPage{}
	snap.Jobs(after, func(j *state.Job) bool {
		switch {
		case s.Namespace != "" && j.Key.Namespace != s.Namespace:
			return j.Key.Namespace < s.Namespace
		case !s.has(j):
			return true
		case len(page.Rows) == s.Limit:
			page.Next = keyText(page.Rows[s.Limit-1].Key)
			return false
		}
		page.Rows = append(page.Rows, j)
		return true
	})
	return page, nil
}

// has reports whether a job is in the selection.
func (s *JobSelection) has(j *state.Job) bool {
	switch {
	case j.Env != nil, s.Namespace != "" && j.Key.Namespace != s.Namespace, s.Stage != "" && j.Stage != s.Stage:
		return false
	case s.Status == "":
		return true
	}
	shown := Job(j)
	return shown.Status == s.Status
}

// jobPlace is where a job stands in the order by submission.
type jobPlace struct {
	submitted muster.Time
	key       muster.JobKey
}

func placeOf(j *state.Job) jobPlace { return jobPlace{j.Submitted, j.Key} }

// compare puts the newest first. Of jobs of the same moment the key decides.
func (p jobPlace) compare(q jobPlace) int {
	return cmp.Or(cmp.Compare(q.submitted, p.submitted), cmp.Compare(p.key.Namespace, q.key.Namespace), cmp.Compare(p.key.Name, q.key.Name))
}

// newestJobs looks at every job, because the state has no index of submissions. It keeps at most
// twice a page of them.
func newestJobs(snap *state.Snapshot, s JobSelection) (*JobPage, error) {
	after, err := cutJobPlace(s.After)
	if err != nil {
		return nil, err
	}
	page, found := &JobPage{}, 0
	order := func(x, y *state.Job) int { return placeOf(x).compare(placeOf(y)) }
	snap.Jobs(muster.JobKey{}, func(j *state.Job) bool {
		if !s.has(j) || s.After != "" && after.compare(placeOf(j)) >= 0 {
			return true
		}
		found++
		if page.Rows = append(page.Rows, j); len(page.Rows) == 2*s.Limit {
			slices.SortFunc(page.Rows, order)
			page.Rows = page.Rows[:s.Limit]
		}
		return true
	})
	slices.SortFunc(page.Rows, order)
	page.Rows = page.Rows[:min(len(page.Rows), s.Limit)]
	if page.Left = found - len(page.Rows); page.Left > 0 {
		last := placeOf(page.Rows[len(page.Rows)-1])
		page.Next = fmt.Sprintf("%d/%s", last.submitted, keyText(last.key))
	}
	return page, nil
}

func keyText(k muster.JobKey) string { return string(k.Namespace) + "/" + k.Name }

// cutJobKey reads the position of a page in the order by name. whole is what the client sent.
func cutJobKey(text, whole string) (muster.JobKey, error) {
	if text == "" && whole == "" {
		return muster.JobKey{}, nil
	}
	ns, name, ok := strings.Cut(text, "/")
	if !ok || muster.CheckName(ns) != nil || muster.CheckName(name) != nil {
		return muster.JobKey{}, errPage
	}
	return muster.JobKey{Namespace: muster.Namespace(ns), Name: name}, nil
}

// cutJobPlace reads the position of a page in the order by submission.
func cutJobPlace(text string) (jobPlace, error) {
	if text == "" {
		return jobPlace{}, nil
	}
	at, rest, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(at, 10, 64)
	key, bad := cutJobKey(rest, text)
	if err != nil || bad != nil {
		return jobPlace{}, errPage
	}
	return jobPlace{muster.Time(n), key}, nil
}

// errPage says nothing of what was sent: the handler quotes it.
var errPage = errors.New("pass next of the page before")

// mostShownCommand is how much of a command is in a list, in bytes.
const mostShownCommand = 200

// JobInList shows a job without its spec, with the beginning of its command.
func JobInList(j *state.Job) api.Job {
	out := Job(j)
	out.Command = commandInList(j.Run.Spec.Command)
	return out
}

func commandInList(command []string) []string {
	var out []string
	left := mostShownCommand
	for _, word := range command {
		if len(word) > left {
			// A rune that is cut in the middle would be no text.
			return append(out, strings.ToValidUTF8(word[:left], "")+"…")
		}
		out, left = append(out, word), max(left-len(word)-1, 0)
	}
	return out
}
