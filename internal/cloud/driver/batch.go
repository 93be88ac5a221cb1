package driver

import (
	"sync"

	"github.com/musterhq/muster"
)

// AtOnce is how many calls of one batch run at the same time, where a cloud says nothing of it.
const AtOnce = 8

// Each runs do for 0 to n-1, at most so many at the same time, for clouds whose calls are about one
// thing each. It returns when all have ended.
func Each(n, atOnce int, do func(i int)) {
	turns := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			do(i)
		})
	}
	wg.Wait()
}

// Shares of what a cloud sells that a node has: MemoryShare is how much of a machine's memory Linux
// sees at worst, DiskShare how much of a disk the image and the file system leave.
const MemoryShare, DiskShare = 0.93, 0.9

// Share is that part of a size, in whole MiB.
func Share(b muster.Bytes, of float64) muster.Bytes {
	return muster.Bytes(float64(b)*of) / muster.MiB * muster.MiB
}
