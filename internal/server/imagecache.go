package server

import (
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/musterhq/muster/internal/control/link/pulls"
	"github.com/musterhq/muster/internal/imagecache"
)

// openImageCache opens the cache of images, if the configuration wants one.
func (s *Server) openImageCache() (err error) {
	if s.cfg.ImageCache.Size == 0 {
		return nil
	}
	s.imageCache, err = imagecache.New(imagecache.Config{
		Grants: s.grants.ForServer(), Dir: filepath.Join(s.cfg.DataDir, "image-cache"), Size: int64(s.cfg.ImageCache.Size), Fresh: s.cfg.ImageCache.Fresh.Std(),
		DiskLow: s.diskLow, Logger: s.log,
	})
	return err
}

// cachedImages is the cache as the link wants it: nil without one.
func (s *Server) cachedImages() pulls.ImageCache {
	if s.imageCache == nil {
		return nil
	}
	return s.imageCache
}

// measureImageCache registers the metrics of the cache of images. A scrape reads them from stats.
func measureImageCache(r prometheus.Registerer, stats func() imagecache.Stats) {
	counter := func(name, help string, value func(imagecache.Stats) int64) {
		r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value(stats())) }))
	}
	counter("muster_image_cache_hits_total", "Parts of images that nodes got from the server's image cache, or from a download that was under way.",
		func(s imagecache.Stats) int64 { return s.Hits })
	counter("muster_image_cache_misses_total", "Parts of images that the image cache asked a registry for.",
		func(s imagecache.Stats) int64 { return s.Misses })
	counter("muster_image_cache_fetched_bytes_total", "Bytes that the image cache downloaded from registries.",
		func(s imagecache.Stats) int64 { return s.Fetched })
	counter("muster_image_cache_served_bytes_total", "Bytes that nodes got from the image cache.",
		func(s imagecache.Stats) int64 { return s.Served })
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "muster_image_cache_bytes", Help: "Bytes in the image cache. Its limit is image_cache.size."},
		func() float64 { return float64(stats().Used) }))
}
