package muster

import (
	"fmt"
	"strings"
)

// Namespace says whose work it is. It is part of every name.
type Namespace string

// DefaultNamespace is used where none is given.
const DefaultNamespace Namespace = "default"

// AllNamespaces stands for all of them together where limits and use are told. It is no name that a namespace can have.
const AllNamespaces Namespace = "*"

// JobKey names a job for ever: (namespace, name). What runs under the name
// may change; see JobUID.
type JobKey struct {
	Namespace Namespace `json:"namespace" cbor:"1,keyasint"`
	Name      string    `json:"name" cbor:"2,keyasint"`
}

// String is the key as users write it: "name" in the default namespace,
// "namespace/name" elsewhere.
func (k JobKey) String() string {
	if k.Namespace == DefaultNamespace || k.Namespace == "" {
		return k.Name
	}
	return string(k.Namespace) + "/" + k.Name
}

// Compare orders keys by namespace, then name.
func (k JobKey) Compare(o JobKey) int {
	if c := strings.Compare(string(k.Namespace), string(o.Namespace)); c != 0 {
		return c
	}
	return strings.Compare(k.Name, o.Name)
}

// MaxNameLen bounds every name that a user may give, in bytes.
const MaxNameLen = 63

// CheckName tells why s cannot be a name, or nil. Names are 1 to 63 lower-case
// letters, digits, dots and dashes, beginning and ending with a letter or digit:
// what survives as a host name label, a blob key and a file name.
func CheckName(s string) error {
	if s == "" {
		return fmt.Errorf("is empty; a name has 1 to %d lower-case letters, digits, dots or dashes", MaxNameLen)
	}
	if len(s) > MaxNameLen {
		return fmt.Errorf("has %d bytes; a name has at most %d", len(s), MaxNameLen)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '-' || c == '.') && i > 0 && i < len(s)-1:
		default:
			return fmt.Errorf("has %q at position %d; a name has lower-case letters, digits, and inside it dots and dashes", c, i+1)
		}
	}
	return nil
}
