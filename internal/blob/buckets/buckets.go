// Package buckets brings the drivers that a bucket URL may name, beside a
// directory: a program that links it can keep blobs in S3, Google Cloud Storage and Azure.
//
// Only cmd/muster imports it. It must never be linked into muster-node, nor
// into tests that do not need it: the SDKs are two thirds of the server's size and minutes of
// its first build.
package buckets

import (
	_ "gocloud.dev/blob/azureblob" // azblob://container
	_ "gocloud.dev/blob/gcsblob"   // gs://bucket
	_ "gocloud.dev/blob/s3blob"    // s3://bucket?region=…
)
