package history

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/problem"
)

// mostRows bounds the rows that one request reads. A page whose filter matches few of them is short,
// and says where to continue.
const mostRows = 10_000

// ListDescription describes List in the API.
const ListDescription = "Those that ended last first, for retention.history (30 days), which is longer than a job is kept under its name. " +
	"A job is here as it ended: its name may belong to another job now. A job appears less than a second after its end. " +
	"Environments and their runners are not in the history."

// Query chooses ended jobs. Its tags are those of the HTTP API.
type Query struct {
	Namespace string `query:"namespace" maxLength:"63" doc:"Only this namespace."`
	Name      string `query:"name" maxLength:"200" doc:"Only jobs of this name; of namespace default if no other is given."`
	Status    string `query:"status" enum:"succeeded,failed,stopped" doc:"Only jobs that ended so."`
	Since     string `query:"since" maxLength:"40" doc:"Only jobs that ended at this time or later, as 2026-09-24T08:00:00Z."`
	Until     string `query:"until" maxLength:"40" doc:"Only jobs that ended before this time."`
	After     string `query:"after" maxLength:"200" doc:"Start of the page: next of the previous page."`
	Limit     int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number."`
}

// One chooses a page of the attempts of one ended job.
type One struct {
	ID    string `path:"id" maxLength:"200" doc:"Id of the ended job."`
	After string `query:"after" maxLength:"200" doc:"Start of the page: next of the previous page."`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"Maximum number of attempts."`
}

// List returns a page of ended jobs, the one that ended last in front. Jobs that end meanwhile do not
// move the next page.
func (s *Store) List(q *Query) (*api.History, error) {
	since, until, err := q.times()
	if err != nil {
		return nil, err
	}
	end := timeKey(until, "")
	if q.After != "" {
		at, err := parseCursor(q.After)
		if err != nil {
			return nil, err
		}
		if bytes.Compare(at, end) < 0 {
			end = at
		}
	}
	prefix, bucket := []byte(nil), jobsBucket
	if q.Namespace != "" || q.Name != "" {
		ns := q.Namespace
		if ns == "" {
			ns = string(muster.DefaultNamespace)
		}
		prefix, bucket = nameKey(muster.Namespace(ns), q.Name, nil), namesBucket
	}
	out := &api.History{Jobs: []api.EndedJob{}}
	err = s.view(func(tx *bolt.Tx) error {
		c, read := tx.Bucket(bucket).Cursor(), 0
		for k := before(c, append(bytes.Clone(prefix), end...)); bytes.HasPrefix(k, prefix) && k != nil; k, _ = c.Prev() {
			at := k[len(prefix):]
			if bytes.Compare(at, timeKey(since, "")) < 0 {
				return nil
			}
			if len(out.Jobs) == q.Limit || read == mostRows {
				out.Next = cursor(end)
				return nil
			}
			end = bytes.Clone(at)
			read++
			j, total, err := readJob(tx, at)
			if err != nil {
				return err
			}
			if q.Status == "" || string(j.Result) == q.Status {
				out.Jobs = append(out.Jobs, j.show(total))
			}
		}
		return nil
	})
	return out, err
}

// before moves a cursor to the last key below another.
func before(c *bolt.Cursor, end []byte) []byte {
	if k, _ := c.Seek(end); k == nil {
		k, _ = c.Last()
		return k
	}
	k, _ := c.Prev()
	return k
}

// readJob reads the job of a key, and the totals of its attempts.
func readJob(tx *bolt.Tx, at []byte) (*job, *sums, error) {
	j := &job{UID: muster.JobUID(at[8:])}
	if err := decode(tx.Bucket(jobsBucket).Get(at), j); err != nil {
		return nil, nil, err
	}
	total, err := sumsOf(tx, j.UID)
	return j, total, err
}

// Show returns one ended job with a page of its attempts.
func (s *Store) Show(q *One) (*api.EndedJobDetail, error) {
	index, number, uid := 0, 0, muster.JobUID(q.ID)
	if q.After != "" {
		a, b, ok := strings.Cut(q.After, "-")
		i, e1 := strconv.ParseUint(a, 10, 62)
		n, e2 := strconv.ParseUint(b, 10, 62)
		if !ok || e1 != nil || e2 != nil {
			return nil, problem.Invalid("query.after", "%q is not the next of a page", problem.Clip(q.After))
		}
		index, number = int(i), int(n)
	}
	out := &api.EndedJobDetail{Attempts: []api.EndedAttempt{}}
	err := s.view(func(tx *bolt.Tx) error {
		total, err := sumsOf(tx, uid)
		if err != nil {
			return err
		}
		if total.Ended == 0 {
			return problem.NotFound("ended job %s: not found in the history", problem.Clip(q.ID))
		}
		j, total, err := readJob(tx, timeKey(total.Ended, q.ID))
		if err != nil {
			return err
		}
		out.Job = j.show(total)
		c, prefix := tx.Bucket(attemptsBucket).Cursor(), append([]byte(uid), 0)
		for k, v := c.Seek(attemptKey(uid, index, number+1)); bytes.HasPrefix(k, prefix) && k != nil; k, v = c.Next() {
			if n := len(out.Attempts); n == q.Limit {
				last := out.Attempts[n-1]
				out.Next = strconv.Itoa(last.Index) + "-" + strconv.Itoa(last.Attempt)
				return nil
			}
			var a attempt
			if err := decode(v, &a); err != nil {
				return err
			}
			out.Attempts = append(out.Attempts, a.show(uid))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// times are the bounds of a query.
func (q *Query) times() (since, until muster.Time, err error) {
	until = 1<<63 - 1
	for _, f := range []struct {
		name, text string
		at         *muster.Time
	}{{"query.since", q.Since, &since}, {"query.until", q.Until, &until}} {
		if f.text == "" {
			continue
		}
		t, err := time.Parse(time.RFC3339, f.text)
		if err != nil {
			return 0, 0, problem.Invalid(f.name, "%q is not a time as 2026-09-24T08:00:00Z", problem.Clip(f.text))
		}
		*f.at = max(muster.At(t), 0)
	}
	return since, until, nil
}

// cursor is a key of a job as text: the end, and the uid.
func cursor(at []byte) string {
	return strconv.FormatUint(binary.BigEndian.Uint64(at), 10) + "." + string(at[8:])
}

func parseCursor(text string) ([]byte, error) {
	at, uid, ok := strings.Cut(text, ".")
	n, err := strconv.ParseUint(at, 10, 63)
	if !ok || err != nil || uid == "" {
		return nil, problem.Invalid("query.after", "%q is not the next of a page", problem.Clip(text))
	}
	return timeKey(muster.Time(n), uid), nil
}
