package place_test

import (
	"github.com/musterhq/muster/internal/decide/place"
	"github.com/musterhq/muster/internal/explain"
)

// The golden files of package place show explanations as users read them.
func init() { place.Lines = explain.PlacementLines }
