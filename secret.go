package muster

import (
	"fmt"
	"log/slog"
)

// Secret is a string that prints as *** in text, JSON and logs. Reveal is the
// only way to its value.
type Secret struct{ value string }

const hidden = "***"

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal is the value itself.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.value == "" }

// String hides the value.
func (s Secret) String() string { return hidden }

// GoString hides the value.
func (s Secret) GoString() string { return hidden }

// Format hides the value from every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }

// MarshalText hides the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// MarshalJSON hides the value.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + hidden + `"`), nil }

// UnmarshalText takes a value over, as it is. What was hidden stays hidden: it reads as the stars.
func (s *Secret) UnmarshalText(text []byte) error {
	s.value = string(text)
	return nil
}

// LogValue hides the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
