package operators

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
)

func TestImage(t *testing.T) {
	s := newServer(t)
	digest := "sha256:" + strings.Repeat("ab", 32)
	s.Inside.Images["n1"] = &api.ImageList{Images: []api.Image{{Ref: "python:3.13", Digest: digest, Size: 120 << 20, Layers: 5, InUse: 2}}, Used: 120 << 20, Limit: 10 << 30}
	s.Inside.Images["n2"] = &api.ImageList{}
	s.Muster(nil, "image", "list").Check(t, 0, "NODE  IMAGE        DIGEST               SIZE    LAYERS  USED\nn1    python:3.13  sha256:abababababab  120MiB  5       by 2 now\n",
		"muster: node n1: 1 image, 120MiB of 10GiB\nmuster: node n2: 0 images, 0B of 0B\n")
	s.Muster(nil, "image", "list", "--node", "n9").Check(t, 1, "", "muster: node n9: node n9: not found; `muster node list` shows the nodes\nmuster: the images could not be listed on 1 of 1 node\n")
	s.Inside.Pulls = []api.ImageProgress{{Done: 1, Total: 2, Layers: 2, LayersDone: 1}, {Digest: digest}}
	s.Muster(nil, "image", "pull", "python:3.13", "--pool", "p").Check(t, 0, "n1 "+digest+"\nn2 "+digest+"\n", "")
	s.Muster(nil, "image", "pull", "python:3.13").Check(t, 2, "", "muster: where to\\? give --node NODE or --pool POOL.*")
	s.Muster(nil, "image", "pull", "python:3.13", "--pool", "empty").Check(t, 1, "", "muster: no node of pool empty serves; .*\n")
	s.Inside.Pulls = []api.ImageProgress{{Done: 1}, {Problem: &api.Problem{Status: 404, Detail: "no such image", Code: api.CodeImageNotFound}}}
	s.Muster(nil, "image", "pull", "nope:1", "--node", "n1").Check(t, 1, "", "muster: node n1: no such image\nmuster: nope:1 could not be pulled on 1 of 1 node\n")
	s.Inside.Pulls = []api.ImageProgress{{Done: 1}} // it breaks off
	if r := s.Muster(nil, "image", "pull", "nope:1", "--node", "n1"); r.Code != 3 {
		t.Error(r)
	}
	s.Muster(nil, "image", "prune", "--node", "n1").Check(t, 0, "n1 1MiB freed\n", "")
	s.Muster(nil, "image", "prune", "--all", "--pool", "p").Check(t, 0, "n1 3MiB freed\nn2 3MiB freed\n", "")
}

// A file that is no image is a mistake of the command line, found before the server is asked.
func TestLoadOfWhatIsNoImage(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty.tar")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Muster(nil, "image", "load", empty).Check(t, 2, "", "muster: .*empty.tar is empty; save the image again\n")
	s.Muster(nil, "image", "load", dir).Check(t, 2, "", "muster: .* is a directory; pack an OCI layout with .*\n")
}
