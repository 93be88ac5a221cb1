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
	Ref string `json:"ref" doc:"As python:3.13."`
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
