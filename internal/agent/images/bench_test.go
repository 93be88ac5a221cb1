package images

import (
	"context"
	"fmt"
	wire "github.com/musterhq/muster/internal/wire/agent"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/musterhq/muster/internal/agent/images/layertest"
)

// hundred is an image whose layers have 100 MB together: as many files as such
// images have, and bytes of which about half can be compressed.
func hundred(b *testing.B) built {
	const layers, files, size = 4, 500, 50_000
	rnd := rand.New(rand.NewPCG(1, 2))
	var list []blob
	for l := range layers {
		var items []layertest.Item
		for f := range files {
			body := make([]byte, size)
			for i := range body {
				if i%100 < 45 {
					body[i] = byte(rnd.Uint32())
				}
			}
			items = append(items, layertest.Item{Name: fmt.Sprintf("usr/lib/d%d/%d/f%d", l, f%20, f), Body: string(body)})
		}
		list = append(list, gzLayer(b, items...))
	}
	return build(b, nil, list...)
}

// Pull is a pull of a 100 MB image from a registry on loopback into an empty
// store; Copy is the download of the same bytes into files, and nothing else.
func BenchmarkPull100MB(b *testing.B) {
	layertest.NeedRoot(b)
	r := newReg(b)
	img := hundred(b)
	ref := r.push(b, "hundred", "1", img)
	size := 0
	for _, l := range img.blobs {
		size += len(l.data)
	}
	b.Run("Pull", func(b *testing.B) {
		b.SetBytes(100_000_000)
		b.ReportMetric(float64(size)/1e6, "compressed-MB")
		for b.Loop() {
			s := newStore(b, nil)
			im, err := s.Open(context.Background(), ref, wire.Puller{}, nil)
			if err != nil {
				b.Fatal(err)
			}
			im.Release()
			b.StopTimer()
			if _, err := s.Prune(context.Background(), true); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	})
	b.Run("Copy", func(b *testing.B) {
		b.SetBytes(100_000_000)
		for b.Loop() {
			dir := b.TempDir()
			for i, l := range img.blobs {
				resp, err := http.Get("http://" + r.host + "/v2/hundred/blobs/" + hashOf(l.data).String())
				if err != nil {
					b.Fatal(err)
				}
				f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(f, resp.Body); err != nil {
					b.Fatal(err)
				}
				_ = resp.Body.Close()
				_ = f.Close()
			}
		}
	})
	b.Run("Cached", func(b *testing.B) {
		s := newStore(b, nil)
		open(b, s, ref).Release()
		for b.Loop() {
			open(b, s, ref).Release()
		}
	})
	b.Run("FirstUse", func(b *testing.B) {
		s := newStore(b, nil)
		open(b, s, ref).Release()
		for b.Loop() {
			s = again(b, s)
			open(b, s, ref).Release()
		}
	})
}
