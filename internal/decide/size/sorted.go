package size

import "slices"

// sorted is an ordered set that changes little at a time: runs of elements, each
// short enough to be moved about cheaply.
type sorted[T any] struct {
	compare func(a, b T) int
	runs    [][]T // none is empty
	n       int
}

const longestRun = 256

func ordered[T any](compare func(a, b T) int) *sorted[T] { return &sorted[T]{compare: compare} }

// find is where an element is, or belongs.
func (s *sorted[T]) find(x T) (run, at int, found bool) {
	run, _ = slices.BinarySearchFunc(s.runs, x, func(r []T, x T) int { return s.compare(r[len(r)-1], x) })
	if run == len(s.runs) && run > 0 {
		run--
	}
	if run < len(s.runs) {
		at, found = slices.BinarySearchFunc(s.runs[run], x, s.compare)
	}
	return run, at, found
}

// Set puts an element in, in place of an equal one.
func (s *sorted[T]) Set(x T) {
	i, at, found := s.find(x)
	switch {
	case found:
		s.runs[i][at] = x
		return
	case len(s.runs) == 0:
		s.runs = append(s.runs, []T{x})
	default:
		s.runs[i] = slices.Insert(s.runs[i], at, x)
	}
	s.n++
	if r := s.runs[i]; len(r) > longestRun {
		half := slices.Clone(r[len(r)/2:])
		s.runs[i] = slices.Delete(r, len(r)/2, len(r))
		s.runs = slices.Insert(s.runs, i+1, half)
	}
}

// Delete takes an element out, if it is there.
func (s *sorted[T]) Delete(x T) {
	i, at, found := s.find(x)
	if !found {
		return
	}
	s.n--
	if s.runs[i] = slices.Delete(s.runs[i], at, at+1); len(s.runs[i]) == 0 {
		s.runs = slices.Delete(s.runs, i, i+1)
	}
}

// Len is how many there are.
func (s *sorted[T]) Len() int { return s.n }

// Min is the first.
func (s *sorted[T]) Min() (x T, ok bool) {
	if len(s.runs) == 0 {
		return x, false
	}
	return s.runs[0][0], true
}

// Scan goes through them in order until fn returns false; fn must not change the set.
func (s *sorted[T]) Scan(fn func(T) bool) {
	for _, r := range s.runs {
		for _, x := range r {
			if !fn(x) {
				return
			}
		}
	}
}
