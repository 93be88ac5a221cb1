package files

import (
	"strconv"
	"strings"

	initwire "github.com/musterhq/muster/internal/wire/init"
)

// The tar format, as far as files of a sandbox need it: ustar, with pax records for what does not
// fit, and read also as GNU and old ones write it. It is ours because archive/tar, with what it
// imports, made the start of init 3 to 9 % slower, and every sandbox starts one. The tests hold it
// against archive/tar and against the tar program.

// Types of entries.
const (
	tarFile       = '0'
	tarHardLink   = '1'
	tarLink       = '2'
	tarChar       = '3'
	tarBlock      = '4'
	tarDirectory  = '5'
	tarPipe       = '6'
	tarContiguous = '7'
	tarPax        = 'x'
	tarPaxGlobal  = 'g'
	tarLongName   = 'L'
	tarLongLink   = 'K'
	tarLabel      = 'V'
	tarOldFile    = 0
)

const (
	// tarBlockSize is the unit of a tar: headers have it, and contents are filled up to it.
	tarBlockSize = 512
	// maxRecords bounds what one entry says about itself beside its header.
	maxRecords = 1 << 20
	// Places in a header.
	atMode, atUID, atGID, atSize, atTime, atSum = 100, 108, 116, 124, 136, 148
	atType, atLinkName, atMagic, atUser         = 156, 157, 257, 265
	atGroup, atMajor, atMinor, atPrefix         = 297, 329, 337, 345
	prefixSize                                  = 155
)

// tarEntry is the header of an entry, with what came before it about it.
type tarEntry struct {
	kind       byte
	name, link string
	mode       uint32
	uid, gid   int64
	size       int64
	// seconds and nanoseconds are its time, since 1970.
	seconds, nanoseconds int64
	user, group          string
	major, minor         uint32
}

// notTar is what is wrong with a tar, or with one of its entries.
type notTar struct{ name, why string }

// Error names the entry, if there is one.
func (n notTar) Error() string {
	if n.name == "" {
		return "the tar " + n.why
	}
	return "the tar's entry " + strconv.Quote(n.name) + " " + n.why
}

// byteSource is where a tar comes from, see inflow.
type byteSource interface {
	take(limit int64) ([]byte, error)
}

// tarReader reads entries. The content of an entry must be taken before the next entry, or is
// skipped.
type tarReader struct {
	from byteSource
	// left is how much of the entry has not been taken yet. padding comes behind it.
	left, padding int64
	block         [tarBlockSize]byte
}

// next is the next entry; nil at the end.
func (r *tarReader) next() (*tarEntry, error) {
	var later later
	for {
		if err := r.skip(); err != nil {
			return nil, err
		}
		e, err := r.header()
		if e == nil || err != nil {
			if e == nil && err == nil && later.some {
				err = notTar{"", "ends where an entry should come"}
			}
			return nil, err
		}
		r.left, r.padding = e.size, -e.size&(tarBlockSize-1)
		switch e.kind {
		case tarPax, tarLongName, tarLongLink:
			text, err := r.text(e)
			if err == nil {
				err = later.take(e.kind, text)
			}
			if err != nil {
				return nil, err
			}
			continue
		case tarPaxGlobal, tarLabel:
			continue
		}
		if err := later.put(e); err != nil {
			return nil, err
		}
		switch e.kind {
		case tarOldFile, tarContiguous:
			e.kind = tarFile
		}
		if e.kind == tarFile && strings.HasSuffix(e.name, "/") {
			e.kind = tarDirectory // how tars of old say it
		}
		if e.kind != tarFile {
			// Some give links the size of what they lead to, and nothing comes.
			e.size = 0
		}
		r.left, r.padding = e.size, -e.size&(tarBlockSize-1)
		return e, nil
	}
}

// header reads a header; nil at the end.
func (r *tarReader) header() (*tarEntry, error) {
	n, err := r.full(r.block[:])
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, nil // without the end that it should have, as some write it
	case n < tarBlockSize:
		return nil, notTar{"", "is cut short in a header"}
	}
	if r.block == [tarBlockSize]byte{} {
		return nil, nil
	}
	return parseHeader(&r.block)
}

// full fills p. It reads less only at the end of the tar.
func (r *tarReader) full(p []byte) (n int, err error) {
	for n < len(p) {
		b, err := r.from.take(int64(len(p) - n))
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

// content is some of the content of the entry, of which name is for errors only; nothing at its
// end.
func (r *tarReader) content(name string) ([]byte, error) {
	if r.left == 0 {
		return nil, nil
	}
	b, err := r.from.take(r.left)
	if err == nil && len(b) == 0 {
		err = notTar{name, "is cut short"}
	}
	r.left -= int64(len(b))
	return b, err
}

// skip goes to where the next header is.
func (r *tarReader) skip() error {
	for r.left > 0 {
		if _, err := r.content(""); err != nil {
			return err
		}
	}
	for r.padding > 0 {
		b, err := r.from.take(r.padding)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return notTar{"", "is cut short"}
		}
		r.padding -= int64(len(b))
	}
	return nil
}

// text is the content of an entry that is about another one. It is bounded.
func (r *tarReader) text(e *tarEntry) (string, error) {
	if e.size > maxRecords {
		return "", notTar{e.name, "says more about a file than " + strconv.Itoa(maxRecords) + " bytes"}
	}
	b := make([]byte, e.size)
	n, err := r.full(b)
	r.left -= int64(n)
	if err == nil && n < len(b) {
		err = notTar{e.name, "is cut short"}
	}
	return string(b), err
}

// parseHeader reads a header block, and checks its sum.
func parseHeader(b *[tarBlockSize]byte) (*tarEntry, error) {
	e := &tarEntry{kind: b[atType], name: cString(b[:atMode]), link: cString(b[atLinkName:atMagic])}
	sum, signed := int64(0), int64(0)
	for i, c := range b {
		if i >= atSum && i < atType {
			c = ' '
		}
		sum += int64(c)
		signed += int64(int8(c))
	}
	said, ok := parseTarNumber(b[atSum:atType])
	if !ok || said != sum && said != signed {
		return nil, notTar{"", "is none, or is damaged: a header's sum is wrong"}
	}
	var mode, major, minor int64
	for _, field := range []struct {
		to        *int64
		from, to_ int
		what      string
	}{
		{&mode, atMode, atUID, "mode"},
		{&e.uid, atUID, atGID, "owner"},
		{&e.gid, atGID, atSize, "group"},
		{&e.size, atSize, atTime, "size"},
		{&e.seconds, atTime, atSum, "time"},
	} {
		n, ok := parseTarNumber(b[field.from:field.to_])
		if !ok {
			return nil, notTar{e.name, "has a " + field.what + " that is no number"}
		}
		*field.to = n
	}
	if e.size < 0 {
		return nil, notTar{e.name, "has a negative size"}
	}
	e.mode = uint32(mode) & modeBits
	magic := string(b[atMagic:atUser])
	if strings.HasPrefix(magic, "ustar") {
		e.user, e.group = cString(b[atUser:atGroup]), cString(b[atGroup:atMajor])
		major, _ = parseTarNumber(b[atMajor:atMinor])
		minor, _ = parseTarNumber(b[atMinor:atPrefix])
		e.major, e.minor = uint32(major), uint32(minor)
	}
	// GNU's own magic has something else there.
	if strings.HasPrefix(magic, "ustar\x00") {
		if prefix := cString(b[atPrefix : atPrefix+prefixSize]); prefix != "" {
			e.name = prefix + "/" + e.name
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
	if l.size += len(text); l.size > maxRecords {
		return notTar{"", "says more about one file than " + strconv.Itoa(maxRecords) + " bytes"}
	}
	switch kind {
	case tarLongName:
		name := cString([]byte(text))
		l.name = &name
	case tarLongLink:
		link := cString([]byte(text))
		l.link = &link
	default:
		records, ok := parsePax(text)
		if !ok {
			return notTar{"", "has damaged pax records"}
		}
		l.pax = append(l.pax, records...)
	}
	return nil
}

// parsePax reads records: length, space, key, equals sign, value, newline.
func parsePax(text string) (all []paxRecord, ok bool) {
	for text != "" {
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
func (l *later) put(e *tarEntry) error {
	if l.name != nil {
		e.name = *l.name
	}
	if l.link != nil {
		e.link = *l.link
	}
	for _, p := range l.pax {
		ok := true
		switch p.key {
		case "path":
			e.name = p.value
		case "linkpath":
			e.link = p.value
		case "uname":
			e.user = p.value
		case "gname":
			e.group = p.value
		case "uid":
			e.uid, ok = parsePaxNumber(p.value)
		case "gid":
			e.gid, ok = parsePaxNumber(p.value)
		case "size":
			e.size, ok = parsePaxNumber(p.value)
			ok = ok && e.size >= 0
		case "mtime":
			e.seconds, e.nanoseconds, ok = parsePaxTime(p.value)
		default:
			if strings.HasPrefix(p.key, "GNU.sparse.") {
				return notTar{e.name, "is a sparse file in GNU's form, which is not taken"}
			}
		}
		if !ok {
			return notTar{e.name, "has a damaged record of its " + p.key}
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

// appendTarHeader adds the header of an entry, and before it a pax header with what does not fit.
func appendTarHeader(b []byte, e *tarEntry) []byte {
	pax := ""
	name, prefix, ok := splitName(e.name)
	if !ok {
		pax = paxLine("path", e.name)
		name = e.name[:100]
	}
	link := e.link
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
	head := *e
	head.name, head.link = name, link
	head.uid, head.gid = fitting(e.uid, "uid", 7), fitting(e.gid, "gid", 7)
	head.size, head.seconds = fitting(e.size, "size", 11), fitting(e.seconds, "mtime", 11)
	if pax != "" {
		b = appendBlock(b, &tarEntry{kind: tarPax, name: "PaxHeaders/" + last(e.name, 80), mode: 0o644, size: int64(len(pax))}, "")
		b = append(b, pax...)
		b = append(b, make([]byte, -len(pax)&(tarBlockSize-1))...)
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
			return s[i+1:], s[:i], true
		}
	}
	return "", "", false
}

// paxLine is a record, which begins with its own length.
func paxLine(key, value string) string {
	rest := " " + key + "=" + value + "\n"
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
func appendBlock(b []byte, e *tarEntry, prefix string) []byte {
	at := len(b)
	b = append(b, make([]byte, tarBlockSize)...)
	h := b[at:]
	copy(h, e.name)
	putOctal(h[atMode:atUID], int64(e.mode))
	putOctal(h[atUID:atGID], e.uid)
	putOctal(h[atGID:atSize], e.gid)
	putOctal(h[atSize:atTime], e.size)
	putOctal(h[atTime:atSum], e.seconds)
	h[atType] = e.kind
	copy(h[atLinkName:atMagic], e.link)
	copy(h[atMagic:], "ustar\x0000")
	copy(h[atUser:atGroup-1], e.user)
	copy(h[atGroup:atMajor-1], e.group)
	if e.kind == tarChar || e.kind == tarBlock {
		putOctal(h[atMajor:atMinor], int64(e.major))
		putOctal(h[atMinor:atPrefix], int64(e.minor))
	}
	copy(h[atPrefix:], prefix)
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

var _ byteSource = (*inflow)(nil)

// tarFault says what is wrong with a tar, or with the path that it was to be unpacked in.
func tarFault(path string, err error) error {
	if n, ok := err.(notTar); ok {
		return wrong(initwire.FileInvalid, path, n.Error())
	}
	return blame(path, err)
}
