package main

import (
	"os"
	"sync"
	"syscall"
)

const (
	logName = "agent.log"
	// logLimit is how large the log grows before it becomes the old one; one old one is kept.
	logLimit = 8 << 20
)

// logFile is a log that stays within a limit. It is this process's standard
// error as well, so that a crash is told in the same place.
type logFile struct {
	path string

	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.openLocked()
}

// openLocked opens the file at its path and makes it the standard output and error.
func (l *logFile) openLocked() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		for _, fd := range []int{1, 2} {
			if err == nil {
				err = syscall.Dup3(int(f.Fd()), fd, 0)
			}
		}
	}
	if err != nil {
		_ = f.Close()
		return err
	}
	if l.f != nil {
		_ = l.f.Close()
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write appends one line. The log is the one place where a lock is held over a write: lines stay whole.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(p)) > logLimit {
		// If it cannot be rotated it grows: better than no log.
		if os.Rename(l.path, l.path+".old") == nil {
			_ = l.openLocked()
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
