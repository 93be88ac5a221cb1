package files

import (
	"io"
	"strconv"
	"syscall"
	"time"

	"github.com/musterhq/muster/internal/sandbox/account"
	"github.com/musterhq/muster/internal/sandbox/operation"
	"github.com/musterhq/muster/internal/sandbox/system"
	initwire "github.com/musterhq/muster/internal/wire/init"
	"golang.org/x/sys/unix"
)

// Service is what operations on files have to know of their sandbox. It is the same for all of
// them.
type Service struct {
	// Work is the directory that relative paths are relative to.
	Work string
	// User is the sandbox's user, who owns new files unless a client says otherwise.
	User string
	// Contained: the sandbox has a root and users of its own.
	Contained bool
	// Gate bounds how many operations are in system calls at once.
	Gate system.Gate
}

// files is one operation on files. While its goroutine does not wait for the client, it holds a
// slot of the gate and, if the client named a user, a thread that has the rights of this user.
type files struct {
	Service
	// o is the connection, and out what is sent on it.
	o   *operation.Conn
	out outflow
	// names of owners, read when they are first needed.
	names *account.Names
	// as are the rights of the user that the client named; nil: init's own. mine are init's, to be
	// given back.
	as   *rights
	mine rights
}

// Release gives up the slot and the rights of a user, before a wait.
func (f *files) Release() {
	f.giveBack()
	f.Gate.Leave()
}

// Acquire takes them again, after a wait.
func (f *files) Acquire() error {
	f.Gate.Enter()
	return f.assume()
}

// Serve serves one operation on files to its end.
func (s Service) Serve(o *operation.Conn, kind initwire.Kind, fields []byte) {
	f := &files{Service: s, o: o, out: outflow{o: o}}
	o.Hold = f
	s.Gate.Enter()
	defer s.Gate.Leave()
	err := f.do(kind, fields)
	if err == nil {
		err = f.out.frame(initwire.KindDone, nil)
	}
	// The client gets what is wrong as a frame. After any other error nobody is there to be told.
	if wrong, ok := err.(*initwire.FileError); ok {
		err = f.out.frame(initwire.KindFileError, wrong.Fields())
	}
	if err == nil {
		err = f.out.flush()
	}
	// Of these two a client may still be sending.
	if err == nil && (kind == initwire.KindFileWrite || kind == initwire.KindTarWrite) {
		discard(o)
	}
}

// do does what the client asks for. What is wrong with the request, or with a file, is an
// *initwire.FileError, which the client gets. Any other error means that the connection is of no
// use any more.
func (f *files) do(kind initwire.Kind, fields []byte) error {
	switch kind {
	case initwire.KindFileList:
		return parsed(f.list)(initwire.ParseFileList(fields))
	case initwire.KindFileStat:
		return parsed(f.stat)(initwire.ParseFileStat(fields))
	case initwire.KindFileRead:
		return parsed(f.read)(initwire.ParseFileRead(fields))
	case initwire.KindFileWrite:
		return parsed(f.write)(initwire.ParseFileWrite(fields))
	case initwire.KindFileDelete:
		return parsed(f.delete)(initwire.ParseFileDelete(fields))
	case initwire.KindFileMake:
		return parsed(f.make)(initwire.ParseFileMake(fields))
	case initwire.KindTarRead:
		return parsed(f.tarRead)(initwire.ParseTarRead(fields))
	case initwire.KindTarWrite:
		return parsed(f.tarWrite)(initwire.ParseTarWrite(fields))
	}
	return wrong(initwire.FileInvalid, "", "no operation on files has the kind "+strconv.Itoa(int(kind)))
}

// parsed is a function of a request that also takes the error of parsing it.
func parsed[T any](do func(*T) error) func(*T, error) error {
	return func(request *T, err error) error {
		if err != nil {
			return wrong(initwire.FileInvalid, "", "request: "+err.Error())
		}
		return do(request)
	}
}

// discardTime is how long a client may go on sending after its answer.
const discardTime = 5 * time.Second

// discard reads what a client still sends until it has seen the answer. If init closed the
// connection before, tunnels on the way to the client could lose the answer.
func discard(o *operation.Conn) {
	_ = o.Endpoint.SetReadDeadline(time.Now().Add(discardTime))
	for {
		if _, _, err := o.ReadFrame(); err != nil {
			return
		}
	}
}

// wrong is what is wrong with a path.
func wrong(code, path, message string) *initwire.FileError {
	return &initwire.FileError{Code: code, Path: path, Message: message}
}

// blame says what an error of the kernel means for a path. Other errors say it already, and stay as
// they are.
func blame(path string, err error) error {
	// These two are permissions that the kernel knows nothing of.
	if _, ok := err.(notOwned); ok || err == errOwn {
		return wrong(initwire.FilePermission, path, err.Error())
	}
	errno, ok := err.(syscall.Errno)
	if !ok {
		return err
	}
	// The code is for programs. The message is for people, where the kernel's own words say too
	// little.
	code, message := initwire.FileFault, errno.Error()
	switch errno {
	case unix.ENOENT:
		code, message = initwire.FileNotFound, "does not exist"
	case unix.EEXIST:
		code, message = initwire.FileExists, "exists already"
	case unix.EISDIR:
		code, message = initwire.FileIsDirectory, "is a directory"
	case unix.ENOTDIR:
		code, message = initwire.FileNotDirectory, "is not a directory, or goes through something that is none"
	case unix.ENOTEMPTY:
		code, message = initwire.FileNotEmpty, "is a directory that is not empty"
	case unix.EACCES, unix.EPERM:
		code = initwire.FilePermission
	case unix.EROFS:
		code, message = initwire.FilePermission, "is on a file system that cannot be written to"
	case unix.EFBIG, unix.EOVERFLOW:
		code, message = initwire.FileTooLarge, "is larger than its file system takes"
	case unix.ENOSPC, unix.EDQUOT:
		code, message = initwire.FileNoSpace, "no space is left"
	case unix.ENAMETOOLONG:
		code, message = initwire.FileInvalid, "is longer than the system takes"
	case unix.EINVAL:
		code = initwire.FileInvalid
	case unix.EXDEV:
		code, message = initwire.FileInvalid, "leads to another file system, or out of the directory"
	case unix.ELOOP:
		code, message = initwire.FileLoop, "goes through too many links, or through one that is not followed here"
	case unix.EBUSY:
		code, message = initwire.FileBusy, "is in use, or something is mounted on it"
	case unix.ETXTBSY:
		code, message = initwire.FileBusy, "is a program that runs"
	case unix.EAGAIN:
		code, message = initwire.FileBusy, "cannot be had without waiting"
	}
	return wrong(code, path, message)
}

// outflow collects frames for the client, so that many of them go out by one write.
type outflow struct {
	o *operation.Conn
	// buf has frames that were not sent yet.
	buf []byte
	// open is one more than where the frame of bytes begins that is being filled; 0: there is none.
	open int
}

// Sizes of an outflow.
const (
	// byteFrame is a whole frame of bytes.
	byteFrame = initwire.HeadSize + initwire.MaxBytes
	// outflowSize is how much is collected.
	outflowSize = 4 * byteFrame
)

// frame adds a frame that has fields and no bytes. Bytes that were there before go first.
func (w *outflow) frame(kind initwire.Kind, fields []byte) error {
	w.seal()
	n := initwire.HeadSize + len(fields)
	if len(w.buf)+n > byteFrame {
		if err := w.flush(); err != nil {
			return err
		}
	}
	at := len(w.buf)
	w.buf = append(w.buf, make([]byte, initwire.HeadSize)...)
	w.buf = append(w.buf, fields...)
	initwire.PutHead(w.buf[at:], kind)
	return nil
}

// room is where the next bytes may be put, at least one. The caller tells by used how many it has
// put there.
func (w *outflow) room() ([]byte, error) {
	// A full frame ends, and the next one begins.
	if w.open > 0 && len(w.buf) >= w.open+byteFrame-1 {
		w.seal()
	}
	if w.open <= 0 {
		if len(w.buf)+byteFrame > outflowSize {
			if err := w.flush(); err != nil {
				return nil, err
			}
		}
		// Only what sends bytes needs the whole buffer: most answers are one small frame.
		if cap(w.buf) < outflowSize {
			w.buf = append(make([]byte, 0, outflowSize), w.buf...)
		}
		w.open = len(w.buf) + 1
		w.buf = w.buf[:len(w.buf)+initwire.HeadSize]
	}
	return w.buf[len(w.buf) : w.open-1+byteFrame], nil
}

// used takes in n bytes that were put into room.
func (w *outflow) used(n int) { w.buf = w.buf[:len(w.buf)+n] }

// seal ends the frame of bytes that is being filled.
func (w *outflow) seal() {
	if w.open <= 0 {
		return
	}
	at := w.open - 1
	// A frame into which nothing was put is taken back.
	if len(w.buf) == at+initwire.HeadSize {
		w.buf = w.buf[:at]
	} else {
		initwire.PutHead(w.buf[at:], initwire.KindData)
	}
	w.open = 0
}

// Write adds bytes. They go out when the buffer is full, or by flush.
func (w *outflow) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		room, err := w.room()
		if err != nil {
			return done, err
		}
		n := copy(room, p[done:])
		w.used(n)
		done += n
	}
	return len(p), nil
}

// flush sends what was collected. It waits for the client for operation.StallTime at most, and
// holds nothing meanwhile.
func (w *outflow) flush() error {
	w.seal()
	if len(w.buf) == 0 {
		return nil
	}
	// The write may wait for a slow client for minutes: what others need is given up meanwhile.
	_ = w.o.Endpoint.SetWriteDeadline(time.Now().Add(operation.StallTime))
	w.o.Pause()
	_, err := w.o.Endpoint.Write(w.buf)
	w.buf = w.buf[:0]
	if resumed := w.o.Resume(); err == nil {
		err = resumed
	}
	return err
}

// inflow reads the bytes that a client sends, up to their end.
type inflow struct {
	o *operation.Conn
	// body is what is left of the frame that came last.
	body []byte
	// over: the end of the bytes has come.
	over bool
}

// brokenOff says why the bytes did not come to their end: the client left, or sent what it must
// not.
type brokenOff struct{ why string }

// Error is the reason.
func (b brokenOff) Error() string { return b.why }

// Read implements io.Reader.
func (r *inflow) Read(p []byte) (int, error) {
	b, err := r.Take(int64(len(p)))
	if err == nil && len(b) == 0 && len(p) > 0 {
		err = io.EOF
	}
	return copy(p, b), err
}

// Take is what comes next: at least one byte and at most limit, or nothing at the end. It is good
// until the next take.
func (r *inflow) Take(limit int64) ([]byte, error) {
	for len(r.body) == 0 {
		if r.over {
			return nil, nil
		}
		_ = r.o.Endpoint.SetReadDeadline(time.Now().Add(operation.StallTime))
		kind, body, err := r.o.ReadFrame()
		switch {
		case err != nil:
			return nil, brokenOff{err.Error()}
		case kind == initwire.KindBytesEnd:
			r.over = true
		// Nothing else may come before the end of the bytes.
		case kind != initwire.KindBytes || len(body) > initwire.MaxBytes:
			return nil, brokenOff{"frame of kind " + strconv.Itoa(int(kind)) + " among bytes"}
		default:
			r.body = body
		}
	}
	n := int64(len(r.body))
	if n > limit {
		n = limit
	}
	b := r.body[:n]
	r.body = r.body[n:]
	return b, nil
}
