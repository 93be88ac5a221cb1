package blob

import (
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
)

// The layout of the store. Keys are made here only, so that a job's blobs can
// be deleted with it and a stream's chunks sort by their offset:
//
//	jobs/NAMESPACE/UID/ALLOC/stdout/OFFSET    a chunk of a stream; OFFSET has 19 digits
//	jobs/NAMESPACE/UID/ALLOC/outputs/N        tar of the N-th declared output; N has 6 digits
//	uploads/sha256/HEX                        an input that a user uploaded
//	uploads/seen/HEX-TIME                     empty: when a sweep first saw that input; TIME is in microseconds since the epoch
const (
	jobsPrefix    = "jobs/"
	uploadsPrefix = "uploads/"
	contentPrefix = uploadsPrefix + "sha256/"
	seenPrefix    = uploadsPrefix + "seen/"
	digestPrefix  = "sha256:"

	// tempSuffix ends the name of a file that the directory driver is still writing.
	tempSuffix = ".tmp"
)

// JobPrefix is the prefix of all that is stored of a job. It ends with a slash.
func JobPrefix(ns muster.Namespace, uid muster.JobUID) string {
	return jobsPrefix + string(ns) + "/" + string(uid) + "/"
}

// AllocPrefix is the prefix of all that is stored of an allocation. It ends with a slash.
func AllocPrefix(ns muster.Namespace, uid muster.JobUID, alloc muster.AllocID) string {
	return JobPrefix(ns, uid) + string(alloc) + "/"
}

// StreamPrefix is the prefix of a stream's chunks. It ends with a slash.
func StreamPrefix(ns muster.Namespace, uid muster.JobUID, alloc muster.AllocID, stream string) string {
	return AllocPrefix(ns, uid, alloc) + stream + "/"
}

// StreamKey is the key of the chunk that begins at an offset of a stream
// ("stdout" or "stderr"). The chunk holds the stream's bytes from there on, as many as its size says.
func StreamKey(ns muster.Namespace, uid muster.JobUID, alloc muster.AllocID, stream string, offset int64) string {
	return fmt.Sprintf("%s%019d", StreamPrefix(ns, uid, alloc, stream), offset)
}

// StreamOffset reads the offset back from a StreamKey.
func StreamOffset(key string) (int64, bool) {
	base := path.Base(key)
	n, err := strconv.ParseInt(base, 10, 64)
	return n, err == nil && n >= 0 && len(base) == 19
}

// OutputKey is the key of the tar of an allocation's n-th stored output, from 0.
func OutputKey(ns muster.Namespace, uid muster.JobUID, alloc muster.AllocID, n int) string {
	return fmt.Sprintf("%soutputs/%06d", AllocPrefix(ns, uid, alloc), n)
}

// UploadKey is the key of an uploaded input by its digest, "sha256:" and 64
// hexadecimal digits. The digest must have passed CheckDigest.
func UploadKey(digest string) string {
	return contentPrefix + strings.TrimPrefix(digest, digestPrefix)
}

// UploadDigest reads the digest back from an UploadKey.
func UploadDigest(key string) (string, bool) {
	hex, ok := strings.CutPrefix(key, contentPrefix)
	digest := digestPrefix + hex
	return digest, ok && CheckDigest(digest) == nil
}

// seenKey is the key that says when a sweep first saw an upload.
func seenKey(digest string, at time.Time) string {
	return fmt.Sprintf("%s%s-%d", seenPrefix, strings.TrimPrefix(digest, digestPrefix), at.UnixMicro())
}

// parseSeenKey reads digest and time back from a seenKey.
func parseSeenKey(key string) (digest string, at time.Time, ok bool) {
	name, ok := strings.CutPrefix(key, seenPrefix)
	hex, micros, cut := strings.Cut(name, "-")
	n, err := strconv.ParseInt(micros, 10, 64)
	digest = digestPrefix + hex
	return digest, time.UnixMicro(n), ok && cut && err == nil && CheckDigest(digest) == nil
}

// CheckDigest tells why s is not a digest as inputs carry it, or nil.
func CheckDigest(s string) error {
	if !api.IsDigest(s) {
		return muster.Faultf(muster.FaultInvalid, "is not a digest; write sha256: and 64 lower-case hexadecimal digits")
	}
	return nil
}

// checkKey refuses what could leave the store's directory, or what the layout
// above cannot have made.
func checkKey(key string) error {
	if key == "" || len(key) > 512 {
		return muster.Faultf(muster.FaultInvalid, "blob key of %d bytes; a key has 1 to 512", len(key))
	}
	if strings.HasSuffix(key, tempSuffix) || strings.HasSuffix(key, ".attrs") {
		return muster.Faultf(muster.FaultInvalid, "blob key %.60q has an ending that the directory driver uses itself", key)
	}
	for _, part := range strings.Split(strings.TrimSuffix(key, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return muster.Faultf(muster.FaultInvalid, "blob key %.60q has an empty or dotted part", key)
		}
	}
	for i := 0; i < len(key); i++ {
		c := key[i]
		ok := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '/' || c == '_'
		if !ok {
			return muster.Faultf(muster.FaultInvalid, "blob key %.60q has %q at position %d", key, c, i+1)
		}
	}
	return nil
}
