package buckets_test

import (
	"testing"

	"github.com/musterhq/muster/internal/blob"
	_ "github.com/musterhq/muster/internal/blob/buckets"
)

// Opening a bucket asks nobody yet: it shows that its driver is linked in.
func TestBucketsCanBeOpened(t *testing.T) {
	t.Setenv("AZURE_STORAGE_ACCOUNT", "nobody")
	t.Setenv("AZURE_STORAGE_KEY", "a2V5")
	for _, u := range []string{"s3://bucket?region=us-east-1&anonymous=true", "gs://bucket?access_id=-", "azblob://container"} {
		s, err := blob.New(blob.Config{URL: u})
		if err != nil {
			t.Errorf("%s: %v", u, err)
			continue
		}
		_ = s.Close()
	}
}
