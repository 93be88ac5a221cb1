package blob

// The drivers that a bucket URL may name, beside a directory. This is the only
// place where the SDKs of object stores enter the program.
import (
	_ "gocloud.dev/blob/azureblob" // azblob://container
	_ "gocloud.dev/blob/gcsblob"   // gs://bucket
	_ "gocloud.dev/blob/s3blob"    // s3://bucket?region=…
)
