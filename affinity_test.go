package muster

import (
	"strings"
	"testing"
)

func TestImageKey(t *testing.T) {
	const digest = "sha256:0123"
	for _, c := range []struct{ ref, want string }{
		{"busybox", "image:docker.io/library/busybox:latest"},
		{"docker.io/busybox:latest", "image:docker.io/library/busybox:latest"},
		{"index.docker.io/library/busybox", "image:docker.io/library/busybox:latest"},
		{"team/app:1", "image:docker.io/team/app:1"},
		{"ghcr.io/team/app:1", "image:ghcr.io/team/app:1"},
		{"localhost/app", "image:localhost/app:latest"},
		{"registry:5000/app", "image:registry:5000/app:latest"},
		{"busybox:1@" + digest, "image:" + digest},
		{"ghcr.io/team/app@" + digest, "image:" + digest},
		{digest, "image:" + digest},
		{"oci:/images/app", "image:oci:/images/app"},
		{"docker-archive:/app.tar:team/app:1", "image:docker-archive:/app.tar:team/app:1"},
	} {
		if got := ImageKey(c.ref); got != AffinityKey(c.want) || !got.IsImage() {
			t.Errorf("%s: %s, want %s", c.ref, got, c.want)
		}
	}
}

func TestCheckAffinityKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "dataset/imagenet-2012": true, "s3://bucket/x": true, "images": true, strings.Repeat("a", MaxAffinityKey): true,
		"image:busybox": false, "a b": false, "\x00": false, "é": false, strings.Repeat("a", MaxAffinityKey+1): false,
	} {
		if why := CheckAffinityKey(key); (why == "") != ok {
			t.Errorf("%q: %q", key, why)
		}
	}
}
