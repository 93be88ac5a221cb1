package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/agent"
	"github.com/musterhq/muster/internal/agent/contract"
	"github.com/musterhq/muster/internal/agent/images"
	"github.com/musterhq/muster/internal/agent/journal"
	"github.com/musterhq/muster/internal/agent/oci"
)

const (
	// idBase is the first of the ids that root and the others inside containers are outside. It is above
	// what systemd gives to containers and below what 32-bit programs take for negative.
	idBase = 28992 << 16
	// tagFresh is for how long it is taken for granted what an image's tag means: a start does not
	// wait for a registry then, and members that start together run the same.
	tagFresh = 5 * time.Minute
)

// containers adds to an agent's configuration what makes it run containers.
// Where that is not to be had, the runtime's own check says why, to operators.
func (f agentFlags) containers(c *agent.Config, dir, initPath string, log *slog.Logger, user userMode) error {
	if f.runtime == "none" {
		return nil
	}
	limit, err := api.ParseSize(f.imageCache)
	if err != nil {
		return fmt.Errorf("--image-cache: %w", err)
	}
	// Agents of one host, as those of the local provider, are told apart by their directories.
	block := fnv.New32a()
	_, _ = block.Write([]byte(dir))
	rt, err := oci.New(user.oci(oci.Config{
		InitPath: initPath, CgroupParent: f.cgroup, Program: f.runtime, IDBase: idBase, IDBlock: int(block.Sum32() >> 1),
		Images: cmp.Or(f.images, dir), RefuseHoles: f.refuseHoles, Log: log,
	}))
	if err != nil {
		return err
	}
	c.Runtimes = append(c.Runtimes, rt)
	if c.Networks, err = user.networks(dir, log); err != nil {
		return err
	}
	c.Images = func(ways agent.ImageWays) (contract.Images, error) {
		cache := filepath.Join(dir, journal.ImagesName)
		if f.images != "" {
			if cache, err = images.Lease(f.images, dir); err != nil {
				return nil, err
			}
		}
		store, err := images.New(images.Config{
			Dir: cache, Limit: int64(limit), Shift: cmp.Or(-user.ids(), rt.IDBase()), Grant: images.Granted(ways.Grant), Loaded: ways.Loaded, Fresh: tagFresh, Logger: log,
			Destinations: c.Destinations,
		})
		if err != nil {
			return nil, err
		}
		return images.Agent{Store: store}, nil
	}
	return nil
}
