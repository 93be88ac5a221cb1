package ustar

import (
	"strconv"
	"strings"
)

// Kinds of entries that a Reader answers. It answers others too, which only its caller knows.
const (
	// File is a regular file.
	File = '0'
	// HardLink is another name of an entry that came before it.
	HardLink = '1'
	// Link is a symbolic link.
	Link = '2'
	// Char and Block are devices.
	Char  = '3'
	Block = '4'
	// Directory is a directory.
	Directory = '5'
	// Pipe is a named pipe.
	Pipe = '6'
)

// Kinds of entries that a Reader deals with itself: old names of a regular file, what is about the
// next entry, and what is about the whole tar.
const (
	kindOldFile    = 0
	kindContiguous = '7'
	kindPax        = 'x'
	kindPaxGlobal  = 'g'
	kindLongName   = 'L'
	kindLongLink   = 'K'
	kindLabel      = 'V'
)

// Sizes and places.
const (
	// BlockSize is the unit of a tar: headers have it, and contents are filled up to it.
	BlockSize = 512
	// maxRecords bounds what one entry says about itself beside its header.
	maxRecords = 1 << 20
	// Places in a header, and the size of what ustar puts before a long name.
	atMode, atUID, atGID, atSize, atTime, atSum = 100, 108, 116, 124, 136, 148
	atType, atLinkName, atMagic, atUser         = 156, 157, 257, 265
	atGroup, atMajor, atMinor, atPrefix         = 297, 329, 337, 345
	prefixSize                                  = 155
)

// Entry is the header of an entry, with what came before it about it.
type Entry struct {
	// Kind is one of the kinds above, or another byte.
	Kind byte
	// Name is as the tar has it: it may lead anywhere. Target is what a link leads to.
	Name, Target string
	// Mode has the bits of 07777 only.
	Mode     uint32
	UID, GID int64
	// Size is how many bytes of content follow. Only regular files have any.
	Size int64
	// Seconds and Nanoseconds are its time, since 1970. Nanoseconds are not written.
	Seconds, Nanoseconds int64
	// User and Group are names, if the tar has them.
	User, Group string
	// Major and Minor are of devices.
	Major, Minor uint32
}

// Error is what is wrong with a tar, or with one of its entries.
type Error struct{ Name, Why string }

// Error names the entry, if there is one.
func (n Error) Error() string {
	if n.Name == "" {
		return "the tar " + n.Why
	}
	return "the tar's entry " + strconv.Quote(n.Name) + " " + n.Why
}

// Source is where a tar comes from.
type Source interface {
	// Take is what comes next: at least one byte and at most limit, or nothing at the end. It is
	// good until the next Take.
	Take(limit int64) ([]byte, error)
}

// Reader reads entries. The content of an entry must be taken before the next entry, or is skipped.
type Reader struct {
	from Source
	// left is how much of the entry has not been taken yet. padding comes behind it.
	left, padding int64
	block         [BlockSize]byte
}

// NewReader begins to read a tar.
func NewReader(from Source) *Reader { return &Reader{from: from} }

// Next is the next entry; nil at the end.
func (r *Reader) Next() (*Entry, error) {
	var later later
	for {
		if err := r.skip(); err != nil {
			return nil, err
		}
		e, err := r.header()
		if e == nil || err != nil {
			if e == nil && err == nil && later.some {
				err = Error{"", "ends where an entry should come"}
			}
			return nil, err
		}
		r.left, r.padding = e.Size, -e.Size&(BlockSize-1)
		switch e.Kind {
		case kindPax, kindLongName, kindLongLink:
			text, err := r.text(e)
			if err == nil {
				err = later.take(e.Kind, text)
			}
			if err != nil {
				return nil, err
			}
			continue
		case kindPaxGlobal, kindLabel:
			continue
		}
		if err := later.put(e); err != nil {
			return nil, err
		}
		switch e.Kind {
		// These are names of old for a regular file.
		case kindOldFile, kindContiguous:
			e.Kind = File
		}
		if e.Kind == File && strings.HasSuffix(e.Name, "/") {
			e.Kind = Directory // how tars of old say it
		}
		if e.Kind != File {
			// Some give links the size of what they lead to, and nothing comes.
			e.Size = 0
		}
		r.left, r.padding = e.Size, -e.Size&(BlockSize-1)
		return e, nil
	}
}

// header reads a header; nil at the end.
func (r *Reader) header() (*Entry, error) {
	n, err := r.full(r.block[:])
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, nil // without the end that it should have, as some write it
	case n < BlockSize:
		return nil, Error{"", "is cut short in a header"}
	}
	// A block of zeros is the end. What comes behind it does not matter.
	if r.block == [BlockSize]byte{} {
		return nil, nil
	}
	return parseHeader(&r.block)
}

// full fills p. It reads less only at the end of the tar.
func (r *Reader) full(p []byte) (n int, err error) {
	for n < len(p) {
		// A source may give less than is asked for.
		b, err := r.from.Take(int64(len(p) - n))
		if err != nil {
			return n, err
		}
		if len(b) == 0 {
			break
		}
		n += copy(p[n:], b)
	}
	return n, nil
}

// Content is some of the content of the entry, of which name is for errors only; nothing at its
// end.
func (r *Reader) Content(name string) ([]byte, error) {
	if r.left == 0 {
		return nil, nil
	}
	b, err := r.from.Take(r.left)
	if err == nil && len(b) == 0 {
		err = Error{name, "is cut short"}
	}
	r.left -= int64(len(b))
	return b, err
}

// skip goes to where the next header is.
func (r *Reader) skip() error {
	for r.left > 0 {
		if _, err := r.Content(""); err != nil {
			return err
		}
	}
	for r.padding > 0 {
		b, err := r.from.Take(r.padding)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return Error{"", "is cut short"}
		}
		r.padding -= int64(len(b))
	}
	return nil
}

// text is the content of an entry that is about another one. It is bounded.
func (r *Reader) text(e *Entry) (string, error) {
	if e.Size > maxRecords {
		return "", Error{e.Name, "says more about a file than " + strconv.Itoa(maxRecords) + " bytes"}
	}
	b := make([]byte, e.Size)
	n, err := r.full(b)
	r.left -= int64(n)
	if err == nil && n < len(b) {
		err = Error{e.Name, "is cut short"}
	}
	return string(b), err
}

// parseHeader reads a header block, and checks its sum.
func parseHeader(b *[BlockSize]byte) (*Entry, error) {
	e := &Entry{Kind: b[atType], Name: cString(b[:atMode]), Target: cString(b[atLinkName:atMagic])}
	sum, signed := int64(0), int64(0)
	for i, c := range b {
		if i >= atSum && i < atType {
			c = ' '
		}
		sum += int64(c)
		signed += int64(int8(c))
	}
	// Some old programs summed up signed bytes.
	said, ok := parseTarNumber(b[atSum:atType])
	if !ok || said != sum && said != signed {
		return nil, Error{"", "is none, or is damaged: a header's sum is wrong"}
	}
	var mode, major, minor int64
	for _, field := range []struct {
		to        *int64
		from, to_ int
		what      string
	}{
		{&mode, atMode, atUID, "mode"},
		{&e.UID, atUID, atGID, "owner"},
		{&e.GID, atGID, atSize, "group"},
		{&e.Size, atSize, atTime, "size"},
		{&e.Seconds, atTime, atSum, "time"},
	} {
		n, ok := parseTarNumber(b[field.from:field.to_])
		if !ok {
			return nil, Error{e.Name, "has a " + field.what + " that is no number"}
		}
		*field.to = n
	}
	if e.Size < 0 {
		return nil, Error{e.Name, "has a negative size"}
	}
	e.Mode = uint32(mode) & 0o7777
	magic := string(b[atMagic:atUser])
	if strings.HasPrefix(magic, "ustar") {
		e.User, e.Group = cString(b[atUser:atGroup]), cString(b[atGroup:atMajor])
		major, _ = parseTarNumber(b[atMajor:atMinor])
		minor, _ = parseTarNumber(b[atMinor:atPrefix])
		e.Major, e.Minor = uint32(major), uint32(minor)
	}
	// GNU's own magic has something else there.
	if strings.HasPrefix(magic, "ustar\x00") {
		if prefix := cString(b[atPrefix : atPrefix+prefixSize]); prefix != "" {
			e.Name = prefix + "/" + e.Name
		}
	}
	return e, nil
}

// cString is a text that a NUL ends.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// parseTarNumber reads octal digits, or the binary form that GNU tar has for large numbers.
func parseTarNumber(b []byte) (n int64, ok bool) {
	if len(b) > 0 && b[0]&0x80 != 0 {
		negative := b[0]&0x40 != 0
		var fill byte
		if negative {
			fill = 0xff
		}
		var u uint64
		for i, c := range b {
			if i == 0 {
				c &= 0x7f
				if negative {
					c |= 0x80
				}
			}
			if i < len(b)-8 {
				if c != fill {
					return 0, false // does not fit
				}
				continue
			}
			u = u<<8 | uint64(c)
		}
		return int64(u), len(b) <= 8 || (int64(u) < 0) == negative
	}
	// Programs fill up the field with spaces or NULs, on either side.
	text := strings.Trim(string(b), " \x00")
	if text == "" {
		return 0, true
	}
	u, err := strconv.ParseUint(text, 8, 63)
	return int64(u), err == nil
}

// later is what comes before an entry and is about it.
type later struct {
	some       bool
	size       int
	name, link *string
	pax        []paxRecord
}

// paxRecord is one record of a pax header.
type paxRecord struct{ key, value string }

// take adds the content of an entry of such a kind.
func (l *later) take(kind byte, text string) error {
	l.some = true
	// Several of them may come before one entry.
	if l.size += len(text); l.size > maxRecords {
		return Error{"", "says more about one file than " + strconv.Itoa(maxRecords) + " bytes"}
	}
	switch kind {
	case kindLongName:
		name := cString([]byte(text))
		l.name = &name
	case kindLongLink:
		link := cString([]byte(text))
		l.link = &link
	default:
		records, ok := parsePax(text)
		if !ok {
			return Error{"", "has damaged pax records"}
		}
		l.pax = append(l.pax, records...)
	}
	return nil
}

// parsePax reads records: length, space, key, equals sign, value, newline.
func parsePax(text string) (all []paxRecord, ok bool) {
	for text != "" {
		// The length counts itself and the newline.
		digits, _, found := strings.Cut(text, " ")
		n, err := strconv.ParseUint(digits, 10, 31)
		if !found || err != nil || n < uint64(len(digits))+4 || n > uint64(len(text)) || text[n-1] != '\n' {
			return nil, false
		}
		key, value, found := strings.Cut(text[len(digits)+1:n-1], "=")
		if !found || key == "" {
			return nil, false
		}
		all = append(all, paxRecord{key, value})
		text = text[n:]
	}
	return all, true
}

// put puts it into the entry.
func (l *later) put(e *Entry) error {
	// What comes later is written over what came before.
	if l.name != nil {
		e.Name = *l.name
	}
	if l.link != nil {
		e.Target = *l.link
	}
	for _, p := range l.pax {
		ok := true
		switch p.key {
		// Records of a pax header win over the header.
		case "path":
			e.Name = p.value
		case "linkpath":
			e.Target = p.value
		case "uname":
			e.User = p.value
		case "gname":
			e.Group = p.value
		case "uid":
			e.UID, ok = parsePaxNumber(p.value)
		case "gid":
			e.GID, ok = parsePaxNumber(p.value)
		case "size":
			e.Size, ok = parsePaxNumber(p.value)
			ok = ok && e.Size >= 0
		case "mtime":
			e.Seconds, e.Nanoseconds, ok = parsePaxTime(p.value)
		default:
			if strings.HasPrefix(p.key, "GNU.sparse.") {
				return Error{e.Name, "is a sparse file in GNU's form, which is not taken"}
			}
		}
		if !ok {
			return Error{e.Name, "has a damaged record of its " + p.key}
		}
	}
	return nil
}

// parsePaxNumber reads a number of a record.
func parsePaxNumber(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// parsePaxTime reads seconds, which may have a sign and decimals.
func parsePaxTime(s string) (seconds, nanoseconds int64, ok bool) {
	whole, decimals, _ := strings.Cut(s, ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	for i := range 9 {
		nanoseconds *= 10
		if i < len(decimals) {
			if decimals[i] < '0' || decimals[i] > '9' {
				return 0, 0, false
			}
			nanoseconds += int64(decimals[i] - '0')
		}
	}
	// Before 1970 decimals point down, and a timespec's point up.
	if whole[0] == '-' && nanoseconds > 0 {
		seconds, nanoseconds = seconds-1, 1_000_000_000-nanoseconds
	}
	return seconds, nanoseconds, true
}

// AppendHeader adds the header of an entry, and before it a pax header with what does not fit.
func AppendHeader(b []byte, e *Entry) []byte {
	pax := ""
	name, prefix, ok := splitName(e.Name)
	if !ok {
		pax = paxLine("path", e.Name)
		name = e.Name[:100]
	}
	link := e.Target
	if len(link) > atMagic-atLinkName {
		pax += paxLine("linkpath", link)
		link = link[:atMagic-atLinkName]
	}
	fitting := func(n int64, key string, digits int) int64 {
		if n >= 0 && n < 1<<(3*digits) {
			return n
		}
		pax += paxLine(key, strconv.FormatInt(n, 10))
		return 0
	}
	// What does not fit is cut here, and whole in the pax header before it.
	head := *e
	head.Name, head.Target = name, link
	head.UID, head.GID = fitting(e.UID, "uid", 7), fitting(e.GID, "gid", 7)
	head.Size, head.Seconds = fitting(e.Size, "size", 11), fitting(e.Seconds, "mtime", 11)
	if pax != "" {
		b = appendBlock(b, &Entry{Kind: kindPax, Name: "PaxHeaders/" + last(e.Name, 80), Mode: 0o644, Size: int64(len(pax))}, "")
		b = append(b, pax...)
		b = append(b, make([]byte, -len(pax)&(BlockSize-1))...)
	}
	return appendBlock(b, &head, prefix)
}

// last is the last n bytes of a text.
func last(s string, n int) string { return s[max(0, len(s)-n):] }

// splitName parts a long name in two, at a slash, as ustar has it.
func splitName(s string) (name, prefix string, ok bool) {
	const nameSize = atMode
	if len(s) <= nameSize {
		return s, "", true
	}
	if len(s) > prefixSize+1+nameSize {
		return "", "", false
	}
	// The leftmost slash that leaves a name which fits; a last slash is the name's own.
	for i := len(s) - nameSize - 1; i < len(s)-1 && i <= prefixSize; i++ {
		if i > 0 && s[i] == '/' {
			// The slash itself is in neither part: readers put it there.
			return s[i+1:], s[:i], true
		}
	}
	return "", "", false
}

// paxLine is a record, which begins with its own length.
func paxLine(key, value string) string {
	rest := " " + key + "=" + value + "\n"
	// The number of digits depends on the length, and the length on the number of digits.
	n := len(rest)
	for {
		line := strconv.Itoa(n) + rest
		if len(line) == n {
			return line
		}
		n = len(line)
	}
}

// appendBlock adds a header block, with its sum.
func appendBlock(b []byte, e *Entry, prefix string) []byte {
	at := len(b)
	b = append(b, make([]byte, BlockSize)...)
	h := b[at:]
	copy(h, e.Name)
	putOctal(h[atMode:atUID], int64(e.Mode))
	putOctal(h[atUID:atGID], e.UID)
	putOctal(h[atGID:atSize], e.GID)
	putOctal(h[atSize:atTime], e.Size)
	putOctal(h[atTime:atSum], e.Seconds)
	h[atType] = e.Kind
	copy(h[atLinkName:atMagic], e.Target)
	copy(h[atMagic:], "ustar\x0000")
	copy(h[atUser:atGroup-1], e.User)
	copy(h[atGroup:atMajor-1], e.Group)
	if e.Kind == Char || e.Kind == Block {
		putOctal(h[atMajor:atMinor], int64(e.Major))
		putOctal(h[atMinor:atPrefix], int64(e.Minor))
	}
	copy(h[atPrefix:], prefix)
	// The field of the sum counts as spaces.
	sum := int64(8 * ' ')
	for _, c := range h {
		sum += int64(c)
	}
	putOctal(h[atSum:atType-1], sum)
	h[atType-1] = ' '
	return b
}

// putOctal fills all of b but its last byte, which stays zero, with octal digits.
func putOctal(b []byte, n int64) {
	for i := len(b) - 2; i >= 0; i-- {
		b[i] = '0' + byte(n&7)
		n >>= 3
	}
}
