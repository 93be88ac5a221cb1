package initwire

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"syscall"
)

// What follows asks an init by whatever connection it is given, because the one who asks may sit
// behind tunnels. One connection is one operation: each of these functions, or what it
// returns, closes it. When ctx ends, the connection is closed under the operation.

// call is one operation from the client's side.
type call struct {
	ctx  context.Context
	conn io.ReadWriteCloser
	// release stops the watch of ctx.
	release func() bool
}

// ask sends a request.
func ask(ctx context.Context, conn io.ReadWriteCloser, kind Kind, fields []byte) (*call, error) {
	if len(fields) >= MaxFrame {
		_ = conn.Close()
		return nil, &FileError{Code: FileInvalid, Message: "the request is " + strconv.Itoa(len(fields)) + " bytes long, the limit is " + strconv.Itoa(MaxFrame)}
	}
	c := &call{ctx: ctx, conn: conn}
	c.release = context.AfterFunc(ctx, func() { _ = conn.Close() })
	// Who closed before reading the request may have said why: that is still to be read.
	if err := WriteFrame(conn, kind, fields); err != nil && !errors.Is(err, syscall.EPIPE) {
		c.close()
		return nil, c.because(err)
	}
	return c, nil
}

func (c *call) close() {
	c.release()
	_ = c.conn.Close()
}

// because tells the end of ctx from a connection that broke by itself.
func (c *call) because(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// next reads a frame; what init says against the operation comes as an error.
func (c *call) next() (Kind, []byte, error) {
	kind, body, err := ReadFrame(c.conn, MaxFrame)
	switch {
	case err == io.EOF:
		return 0, nil, c.because(errors.New("init closed the connection in the middle of an answer"))
	case err != nil:
		return 0, nil, c.because(err)
	case kind == KindFileError:
		e, err := ParseFileError(body)
		if err != nil {
			return 0, nil, err
		}
		return 0, nil, e
	case kind == KindRefused:
		text, _ := ParseText(body)
		return 0, nil, &refusal{text}
	}
	return kind, body, nil
}

// expect reads a frame of one kind.
func (c *call) expect(want Kind) ([]byte, error) {
	kind, body, err := c.next()
	if err == nil && kind != want {
		err = unexpected(kind)
	}
	return body, err
}

func unexpected(kind Kind) error {
	return errors.New("init answers with a frame of kind " + strconv.Itoa(int(kind)) + " where none is due")
}

// do is an operation that is answered by Done alone.
func do(ctx context.Context, conn io.ReadWriteCloser, kind Kind, fields []byte) error {
	c, err := ask(ctx, conn, kind, fields)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.expect(KindDone)
	return err
}

// ListFiles calls each for every entry, and ends with its error.
func ListFiles(ctx context.Context, conn io.ReadWriteCloser, list FileList, each func(*FileEntry) error) error {
	c, err := ask(ctx, conn, KindFileList, list.Fields())
	if err != nil {
		return err
	}
	defer c.close()
	return c.entries(each)
}

func (c *call) entries(each func(*FileEntry) error) error {
	for {
		kind, body, err := c.next()
		switch {
		case err != nil:
			return err
		case kind == KindDone:
			return nil
		case kind != KindFileEntry:
			return unexpected(kind)
		}
		e, err := ParseFileEntry(body)
		if err != nil {
			return err
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

// StatFile asks for one entry.
func StatFile(ctx context.Context, conn io.ReadWriteCloser, stat FileStat) (*FileEntry, error) {
	c, err := ask(ctx, conn, KindFileStat, stat.Fields())
	if err != nil {
		return nil, err
	}
	defer c.close()
	body, err := c.expect(KindFileEntry)
	if err != nil {
		return nil, err
	}
	if _, err := c.expect(KindDone); err != nil {
		return nil, err
	}
	return ParseFileEntry(body)
}

// ReadFile answers the file's entry and its bytes, which end with an error unless all of them came. If the
// entry is not Unsized, they are as many as from the offset to its Size, or Length if that is less.
func ReadFile(ctx context.Context, conn io.ReadWriteCloser, read FileRead) (*FileEntry, io.ReadCloser, error) {
	c, err := ask(ctx, conn, KindFileRead, read.Fields())
	if err != nil {
		return nil, nil, err
	}
	body, err := c.expect(KindFileEntry)
	if err == nil {
		var e *FileEntry
		if e, err = ParseFileEntry(body); err == nil {
			d := &download{call: c, left: -1}
			if !e.Unsized {
				d.left = max(e.Size-max(read.Offset, 0), 0)
			}
			if read.Length > 0 && (d.left < 0 || read.Length < d.left) {
				d.left, d.atMost = read.Length, e.Unsized
			}
			return e, d, nil
		}
	}
	c.close()
	return nil, nil, err
}

// ReadTar answers a tar. What is wrong with the paths themselves is told at once, and not by the reader.
func ReadTar(ctx context.Context, conn io.ReadWriteCloser, read TarRead) (io.ReadCloser, error) {
	c, err := ask(ctx, conn, KindTarRead, read.Fields())
	if err != nil {
		return nil, err
	}
	d := &download{call: c, left: -1}
	if err := d.more(); err != nil && err != io.EOF {
		c.close()
		return nil, err
	}
	return d, nil
}

// download reads the bytes of an operation.
type download struct {
	call *call
	body []byte
	// left is how much may still come, negative: nobody knows.
	left int64
	// atMost: less than left may come.
	atMost bool
	err    error
}

// more reads a frame into body, or the end.
func (d *download) more() error {
	kind, body, err := d.call.next()
	switch {
	case err != nil:
	case kind == KindDone && d.left > 0 && !d.atMost:
		err = io.ErrUnexpectedEOF
	case kind == KindDone:
		err = io.EOF
	case kind != KindData || len(body) == 0 || len(body) > MaxBytes:
		err = unexpected(kind)
	case d.left >= 0 && int64(len(body)) > d.left:
		err = errors.New("init sends more bytes than there are")
	default:
		d.body = body
		if d.left >= 0 {
			d.left -= int64(len(body))
		}
	}
	d.err = err
	return err
}

// Read answers io.EOF only if all came and init said so.
func (d *download) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(d.body) == 0 {
		if d.err == nil {
			_ = d.more()
		}
		if d.err != nil {
			return 0, d.err
		}
	}
	n := copy(p, d.body)
	d.body = d.body[n:]
	return n, nil
}

// WriteTo spares a copy.
func (d *download) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if len(d.body) > 0 {
			m, err := w.Write(d.body)
			n += int64(m)
			d.body = d.body[m:]
			if err != nil {
				return n, err
			}
		}
		if d.err == nil {
			_ = d.more()
		}
		if d.err == io.EOF {
			return n, nil
		}
		if d.err != nil {
			return n, d.err
		}
	}
}

// Close ends the operation. Before its end, init stops sending.
func (d *download) Close() error {
	d.call.close()
	if d.err == nil {
		d.err, d.body = errors.New("read of an operation that is closed"), nil
	}
	return nil
}

// WriteFile makes a file of what src has. If src breaks, or ctx ends, nothing is left of it.
func WriteFile(ctx context.Context, conn io.ReadWriteCloser, write FileWrite, src io.Reader) error {
	return upload(ctx, conn, KindFileWrite, write.Fields(), src)
}

// WriteTar unpacks the tar that src has.
func WriteTar(ctx context.Context, conn io.ReadWriteCloser, write TarWrite, src io.Reader) error {
	return upload(ctx, conn, KindTarWrite, write.Fields(), src)
}

func upload(ctx context.Context, conn io.ReadWriteCloser, kind Kind, fields []byte, src io.Reader) error {
	c, err := ask(ctx, conn, kind, fields)
	if err != nil {
		return err
	}
	defer c.close()
	// The answer may come before everything is sent: then the rest is not wanted.
	var answered sync.WaitGroup
	var answer error
	stop := make(chan struct{})
	answered.Go(func() {
		defer close(stop)
		_, answer = c.expect(KindDone)
	})
	err = send(conn, src, stop)
	if err != nil && !errors.Is(err, errNotSent) {
		// src broke. Without an end of bytes, init drops what it has.
		c.close()
		answered.Wait()
		return c.because(err)
	}
	// Whoever did not take all may have said why.
	answered.Wait()
	if answer == nil && err != nil {
		return c.because(errors.New("init did not wait for all bytes"))
	}
	return answer
}

// errNotSent: the connection does not take any more.
var errNotSent = errors.New("connection broke while bytes were sent")

// send frames what src has, until its end or until stop.
func send(conn io.Writer, src io.Reader, stop <-chan struct{}) error {
	const frames = 2
	buf := make([]byte, frames*(HeadSize+MaxBytes))
	for {
		used := 0
		var broken error
		for range frames {
			n, err := io.ReadAtLeast(src, buf[used+HeadSize:used+HeadSize+MaxBytes], 1)
			if n > 0 {
				PutHead(buf[used:used+HeadSize+n], KindBytes)
				used += HeadSize + n
			}
			if err != nil {
				broken = err
				break
			}
			if n < MaxBytes {
				break // src is slow: what it gave goes on at once
			}
		}
		if broken != nil && broken != io.EOF {
			return broken
		}
		if broken == io.EOF {
			// There is room: the last read gave nothing.
			PutHead(buf[used:used+HeadSize], KindBytesEnd)
			used += HeadSize
		}
		if _, err := conn.Write(buf[:used]); err != nil {
			return errNotSent
		}
		if broken == io.EOF {
			return nil
		}
		select {
		case <-stop:
			return errNotSent
		default:
		}
	}
}

// DeleteFile removes.
func DeleteFile(ctx context.Context, conn io.ReadWriteCloser, del FileDelete) error {
	return do(ctx, conn, KindFileDelete, del.Fields())
}

// MakeDirectory makes a directory.
func MakeDirectory(ctx context.Context, conn io.ReadWriteCloser, mk FileMake) error {
	return do(ctx, conn, KindFileMake, mk.Fields())
}
