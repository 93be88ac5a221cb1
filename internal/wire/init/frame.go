package initwire

import (
	"encoding/binary"
	"errors"
	"io"
	"strconv"
)

// Bounds of frames.
const (
	MaxFrame = 64 << 10
	// MaxStart leaves room for the largest command line and environment that Linux takes (ARG_MAX is 2 MiB by default, 6 at most).
	MaxStart = 8 << 20
	// MaxBytes is how much one frame of bytes carries.
	MaxBytes = 32 << 10
)

// Kind says what a frame is.
type Kind byte

// Kinds of frames. See the package comment for what they are about.
const (
	KindStart  Kind = 1
	KindStatus Kind = 2
	KindStop   Kind = 3
	KindSignal Kind = 4
	KindWait   Kind = 5

	// Executions: requests, and what goes on in the connection of one.
	KindExec       Kind = 32 // Exec
	KindStdin      Kind = 33 // bytes
	KindCloseStdin Kind = 34 // nothing
	KindResize     Kind = 35 // Size
	KindExecSignal Kind = 36 // ExecSignal; in the connection of an execution: its ID is left out
	KindAttach     Kind = 37 // Attach
	KindExecs      Kind = 38 // nothing

	// Files.
	KindFileList   Kind = 48 // FileList
	KindFileStat   Kind = 49 // FilePath
	KindFileRead   Kind = 50 // FileRead
	KindFileWrite  Kind = 51 // FileWrite, then bytes and an end of bytes
	KindFileDelete Kind = 52 // FileDelete
	KindTarRead    Kind = 53 // TarRead
	KindTarWrite   Kind = 54 // TarWrite, then bytes and an end of bytes
	KindBytes      Kind = 55 // bytes
	KindBytesEnd   Kind = 56 // nothing
	KindFileMake   Kind = 57 // FileMake: a directory

	// Ports.
	KindConnect Kind = 64 // a number; once answered, the connection carries the bytes
	KindPorts   Kind = 65 // nothing

	KindExecStarted Kind = 160 // ExecStarted
	KindStdout      Kind = 161 // bytes
	KindStderr      Kind = 162 // bytes
	KindExecEnded   Kind = 163 // ExecEnded
	KindExecList    Kind = 164 // ExecList
	KindFileEntry   Kind = 176 // FileEntry
	KindData        Kind = 177 // bytes
	KindConnected   Kind = 192 // nothing
	KindPortList    Kind = 193 // PortList

	KindStarted Kind = 128
	KindFailed  Kind = 129
	KindState   Kind = 130
	KindDone    Kind = 131
	KindRefused Kind = 132
)

var errShort = errors.New("frame is cut short")

// WriteFrame writes one frame with one Write.
func WriteFrame(w io.Writer, kind Kind, fields []byte) error {
	b, err := Frame(kind, fields)
	if err == nil {
		_, err = w.Write(b)
	}
	return err
}

// Frame is one frame. An error if it would be too large.
func Frame(kind Kind, fields []byte) ([]byte, error) {
	if len(fields) >= MaxStart {
		return nil, errors.New("frame of " + strconv.Itoa(len(fields)) + " bytes is over the limit of " + strconv.Itoa(MaxStart))
	}
	b := append(make([]byte, HeadSize, HeadSize+len(fields)), fields...)
	PutHead(b, kind)
	return b, nil
}

// ReadFrame reads one frame of at most limit bytes. io.EOF means that not even its first byte came.
func ReadFrame(r io.Reader, limit int) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:])) - 1
	if n < 0 || n > int64(limit) {
		return 0, nil, errors.New("frame of " + strconv.FormatInt(n, 10) + " bytes is over the limit of " + strconv.Itoa(limit))
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return Kind(head[4]), body, nil
}

// HeadSize is how long a frame is before its fields or bytes.
const HeadSize = 5

// PutHead writes the head of a frame into its first HeadSize bytes; the rest of frame are its fields or bytes.
// So a buffer with room for a head in front goes out by one write and without a copy.
func PutHead(frame []byte, kind Kind) {
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-HeadSize+1))
	frame[4] = byte(kind)
}

// CutFrame takes the first frame off b, of at most limit bytes; not whole if more of it is to come.
func CutFrame(b []byte, limit int) (kind Kind, fields []byte, whole bool, err error) {
	if len(b) < 5 {
		return 0, nil, false, nil
	}
	n := int64(binary.BigEndian.Uint32(b)) - 1
	if n < 0 || n > int64(limit) {
		return 0, nil, false, errors.New("frame of " + strconv.FormatInt(n, 10) + " bytes is over the limit of " + strconv.Itoa(limit))
	}
	if int64(len(b)-5) < n {
		return 0, nil, false, nil
	}
	return Kind(b[4]), b[5 : 5+n], true, nil
}

func appendString(b []byte, key byte, s string) []byte {
	b = append(b, key)
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// appendInt leaves out zeros: an absent number is zero.
func appendInt(b []byte, key byte, n int64) []byte {
	if n == 0 {
		return b
	}
	var v [binary.MaxVarintLen64]byte
	w := binary.PutVarint(v[:], n)
	b = append(b, key, byte(w))
	return append(b, v[:w]...)
}

func appendBool(b []byte, key byte, v bool) []byte {
	if !v {
		return b
	}
	return appendInt(b, key, 1)
}

// value is the content of one field.
type value []byte

func (v value) int() int64 {
	n, w := binary.Varint(v)
	if w <= 0 {
		return 0
	}
	return n
}

func (v value) bool() bool     { return v.int() != 0 }
func (v value) string() string { return string(v) }

// each calls f for every field.
func each(fields []byte, f func(key byte, v value)) error {
	for len(fields) > 0 {
		key := fields[0]
		n, w := binary.Uvarint(fields[1:])
		if w <= 0 || n > uint64(len(fields)-1-w) {
			return errShort
		}
		rest := fields[1+w:]
		f(key, value(rest[:n]))
		fields = rest[n:]
	}
	return nil
}
