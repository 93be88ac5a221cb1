package cloud

import (
	"context"
	"maps"
)

// Labelled puts an operator's labels (cost centre, stage) on every instance
// that is made. Labels of the intent itself win.
type Labelled struct {
	Provider
	labels map[string]string
}

// NewLabelled goes around p.
func NewLabelled(p Provider, labels map[string]string) *Labelled {
	return &Labelled{Provider: p, labels: maps.Clone(labels)}
}

// Unwrap is Wrapper's.
func (l *Labelled) Unwrap() Provider { return l.Provider }

// Create is Provider's.
func (l *Labelled) Create(ctx context.Context, intents []Intent) []Created {
	labelled := make([]Intent, len(intents))
	for i, in := range intents {
		all := maps.Clone(l.labels)
		if all == nil {
			all = map[string]string{}
		}
		maps.Copy(all, in.Labels)
		in.Labels = all
		labelled[i] = in
	}
	return l.Provider.Create(ctx, labelled)
}

var (
	_ Provider = (*Counted)(nil)
	_ Provider = (*Limited)(nil)
	_ Provider = (*Owned)(nil)
	_ Provider = (*Labelled)(nil)
)

var _ = []Wrapper{(*Counted)(nil), (*Limited)(nil), (*Owned)(nil), (*Labelled)(nil)}
