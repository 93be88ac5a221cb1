package blob

import (
	"strings"
	"testing"

	"github.com/musterhq/muster"
)

// These tests link no driver of buckets, like programs with the build tag lean.
func TestBucketWithoutDriver(t *testing.T) {
	for _, url := range []string{"s3://bucket?region=x", "gs://bucket", "azblob://container"} {
		_, err := New(Config{URL: url})
		if !muster.IsKind(err, muster.FaultInvalid) || !strings.Contains(err.Error(), "without the drivers") || !strings.Contains(err.Error(), "make build") {
			t.Errorf("%s: %v", url, err)
		}
	}
}
