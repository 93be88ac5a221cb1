package api

import "time"

// Image is one in a node's cache.
type Image struct {
	Ref    string    `json:"ref"`
	Digest string    `json:"digest"`
	Size   int64     `json:"size" doc:"Unpacked; layers that images share are counted for each."`
	Layers int       `json:"layers"`
	InUse  int       `json:"in_use" doc:"Sandboxes that use it now."`
	Used   time.Time `json:"used" doc:"When it was last used."`
}

// ImageList is a node's cache.
type ImageList struct {
	Images []Image `json:"images"`
	Used   int64   `json:"used" doc:"Bytes."`
	Limit  int64   `json:"limit" doc:"Bytes; beyond it the least recently used images are deleted."`
}

// ImagePull is the body of POST /v1/nodes/{id}/images.
type ImagePull struct {
	Ref       string `json:"ref" doc:"As python:3.13."`
	Namespace string `json:"namespace,omitempty" doc:"Pull with the registry credentials of this namespace. Default: those that are for all namespaces."`
}

// ImageProgress is a line of its answer, which is NDJSON. The last one has the
// digest, or the problem; an answer without either broke off.
type ImageProgress struct {
	Done       int64    `json:"done,omitempty" doc:"Bytes."`
	Total      int64    `json:"total,omitempty" doc:"Bytes; 0: not known yet."`
	Layers     int      `json:"layers,omitempty"`
	LayersDone int      `json:"layers_done,omitempty"`
	Digest     string   `json:"digest,omitempty"`
	Problem    *Problem `json:"problem,omitempty"`
}

// ImagesPruned is the answer of POST /v1/nodes/{id}/images/prune.
type ImagesPruned struct {
	Freed int64 `json:"freed" doc:"Bytes."`
}

// LoadedImage is an image that was loaded on the server. Nodes get it from the server, and jobs
// that name it do not ask a registry.
type LoadedImage struct {
	Name      string    `json:"name" doc:"As a job writes it in image, as web:1."`
	Digest    string    `json:"digest" doc:"Of its manifest, or of its index if it has several platforms."`
	Size      int64     `json:"size" doc:"Bytes of its layers, as they are stored; layers that images share are counted for each."`
	Platforms []string  `json:"platforms" doc:"As linux/amd64."`
	Loaded    time.Time `json:"loaded"`
	UsedBy    string    `json:"used_by,omitempty" doc:"A job or environment that has not ended and uses it, as job NAMESPACE/NAME or environment NAMESPACE/NAME."`
}

// LoadedImageList is the answer of GET and POST /v1/images.
type LoadedImageList struct {
	Images []LoadedImage `json:"images"`
	Used   int64         `json:"used" doc:"Bytes that all loaded images take in the blob store; shared layers are counted once."`
	Limit  int64         `json:"limit" doc:"The most that they may take: blob.quota. 0: no limit."`
}
