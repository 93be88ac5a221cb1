package initwire

import "strconv"

// KindFileError answers an operation on files that could not be done, instead of anything still to come: FileError.
const KindFileError Kind = 178

// Codes of FileError. They are stable: whoever speaks to users maps them, and never reads a message.
const (
	FileNotFound     = "not-found"
	FileExists       = "exists"
	FileIsDirectory  = "is-a-directory"
	FileNotDirectory = "not-a-directory"
	FileNotEmpty     = "not-empty"
	FilePermission   = "permission"
	FileTooLarge     = "too-large"
	FileNoSpace      = "no-space"
	FileInvalid      = "invalid"
	FileLoop         = "loop"
	FileBusy         = "busy"
	// FileFault is none of the client's making: the disk, the kernel, no descriptors left.
	FileFault = "fault"
)

// Bounds of operations on files.
const (
	// MaxPath is how long a path may be, as the kernel has it, and so a link's target.
	MaxPath = 4095
	// MaxPaths is how many paths one TarRead may name.
	MaxPaths = 256
	// maxName is what is believed of a user's or a group's name.
	maxName = 256
)

// FileError says what was wrong with which path.
type FileError struct {
	// Code is one of the above.
	Code string
	// Path is the path as the client gave it, and for trees what lies below it.
	Path    string
	Message string
}

func (e *FileError) Error() string { return strconv.Quote(e.Path) + ": " + e.Message }

// Fields encodes it.
func (e *FileError) Fields() []byte {
	b := appendString(nil, 1, clip(e.Code, 64))
	b = appendString(b, 2, clip(e.Path, MaxPath))
	return appendString(b, 3, clip(e.Message, 4096))
}

// ParseFileError decodes it. An unknown code is kept: a later init may know more of them.
func ParseFileError(fields []byte) (*FileError, error) {
	e := &FileError{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			e.Code = clip(v.string(), 64)
		case 2:
			e.Path = clip(v.string(), MaxPath)
		case 3:
			e.Message = clip(v.string(), 4096)
		}
	})
	return e, err
}

// FileList asks for the entries of a directory, or for the one entry of anything else. No link below
// the path is followed. An entry below the path is named by the path as it was given, and the rest.
type FileList struct {
	Path string
	// Recursive: all that lies below, but not what lies in a mounted proc, sys or the like.
	Recursive bool
	// Limit ends the list after so many entries; 0: none.
	Limit int64
	// User with whose rights it is read, as in FileWrite; empty: with those of init. Only in a container.
	User string
	// NoFollow: a path that is a link is the one entry, unless it ends in a slash. Otherwise the link is followed.
	NoFollow bool
	// NoHidden leaves out what is in a directory and begins with a dot, and all below it.
	NoHidden bool
}

// Fields encodes it.
func (l *FileList) Fields() []byte {
	b := appendText(appendInt(appendBool(appendString(nil, 1, l.Path), 2, l.Recursive), 3, l.Limit), 4, l.User)
	return appendBool(appendBool(b, 5, l.NoFollow), 6, l.NoHidden)
}

// ParseFileList decodes it.
func ParseFileList(fields []byte) (*FileList, error) {
	l := &FileList{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			l.Path = v.string()
		case 2:
			l.Recursive = v.bool()
		case 3:
			l.Limit = v.int()
		case 4:
			l.User = v.string()
		case 5:
			l.NoFollow = v.bool()
		case 6:
			l.NoHidden = v.bool()
		}
	})
	return l, err
}

// FileStat asks for one entry.
type FileStat struct {
	Path string
	// Follow: if it is a link, what it leads to.
	Follow bool
}

// Fields encodes it.
func (s *FileStat) Fields() []byte { return appendBool(appendString(nil, 1, s.Path), 2, s.Follow) }

// ParseFileStat decodes it.
func ParseFileStat(fields []byte) (*FileStat, error) {
	s := &FileStat{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			s.Path = v.string()
		case 2:
			s.Follow = v.bool()
		}
	})
	return s, err
}

// FileRead asks for the bytes of a regular file. Links are followed.
type FileRead struct {
	Path string
	// Offset is where to begin. Length is how much to read at most; 0: all.
	Offset, Length int64
	// User as in FileList.
	User string
}

// Fields encodes it.
func (r *FileRead) Fields() []byte {
	return appendText(appendInt(appendInt(appendString(nil, 1, r.Path), 2, r.Offset), 3, r.Length), 4, r.User)
}

// ParseFileRead decodes it.
func ParseFileRead(fields []byte) (*FileRead, error) {
	r := &FileRead{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			r.Path = v.string()
		case 2:
			r.Offset = v.int()
		case 3:
			r.Length = v.int()
		case 4:
			r.User = v.string()
		}
	})
	return r, err
}

// FileWrite makes or replaces a regular file, as a whole: nobody ever sees half of it. If the path is a link,
// what it leads to is replaced, and the link stays.
type FileWrite struct {
	Path string
	// Mode of the file; 0: as the file that is replaced has it, else 0644.
	Mode uint32
	// User who shall own it and what Parents makes: NAME, UID, NAME:GROUP or UID:GID; empty: the sandbox's user.
	User string
	// Parents makes the directories that are missing, of ParentMode; 0: 0755.
	Parents    bool
	ParentMode uint32
	// Sized: it is an error if anything but Size bytes come.
	Sized bool
	Size  int64
	// Replace: a link at the path is replaced, not followed, and so is whatever else is no directory.
	Replace bool
}

// Fields encodes it.
func (w *FileWrite) Fields() []byte {
	b := appendInt(appendString(nil, 1, w.Path), 2, int64(w.Mode))
	b = appendBool(appendString(b, 3, w.User), 4, w.Parents)
	b = appendBool(appendInt(b, 5, int64(w.ParentMode)), 6, w.Sized)
	return appendBool(appendInt(b, 7, w.Size), 8, w.Replace)
}

// ParseFileWrite decodes it.
func ParseFileWrite(fields []byte) (*FileWrite, error) {
	w := &FileWrite{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			w.Path = v.string()
		case 2:
			w.Mode = uint32(v.int())
		case 3:
			w.User = v.string()
		case 4:
			w.Parents = v.bool()
		case 5:
			w.ParentMode = uint32(v.int())
		case 6:
			w.Sized = v.bool()
		case 7:
			w.Size = v.int()
		case 8:
			w.Replace = v.bool()
		}
	})
	return w, err
}

// FileDelete removes. Links are removed and never followed, and nothing that is mounted below is entered.
type FileDelete struct {
	Path string
	// Recursive: a directory with all that is in it.
	Recursive bool
	// MissingOK: what is not there is no error.
	MissingOK bool
	// Contents: only what is in the directory, which stays. Here a path that is a link is followed.
	Contents bool
	// EmptyMount, with Recursive: if something is mounted at the path itself, it is emptied and stays. Without it that is an error.
	EmptyMount bool
}

// Fields encodes it.
func (d *FileDelete) Fields() []byte {
	b := appendBool(appendString(nil, 1, d.Path), 2, d.Recursive)
	return appendBool(appendBool(appendBool(b, 3, d.MissingOK), 4, d.Contents), 5, d.EmptyMount)
}

// ParseFileDelete decodes it.
func ParseFileDelete(fields []byte) (*FileDelete, error) {
	d := &FileDelete{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			d.Path = v.string()
		case 2:
			d.Recursive = v.bool()
		case 3:
			d.MissingOK = v.bool()
		case 4:
			d.Contents = v.bool()
		case 5:
			d.EmptyMount = v.bool()
		}
	})
	return d, err
}

// FileMake makes a directory.
type FileMake struct {
	Path string
	// Mode of it and of its parents; 0: 0755.
	Mode uint32
	// Parents makes the directories above as well, and takes one that is there already for made.
	Parents bool
	// User as in FileWrite.
	User string
	// Replace: what is at the path and no directory is replaced, links included; a directory that is there gets User and Mode.
	Replace bool
}

// Fields encodes it.
func (m *FileMake) Fields() []byte {
	b := appendInt(appendString(nil, 1, m.Path), 2, int64(m.Mode))
	return appendBool(appendString(appendBool(b, 3, m.Parents), 4, m.User), 5, m.Replace)
}

// ParseFileMake decodes it.
func ParseFileMake(fields []byte) (*FileMake, error) {
	m := &FileMake{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			m.Path = v.string()
		case 2:
			m.Mode = uint32(v.int())
		case 3:
			m.Parents = v.bool()
		case 4:
			m.User = v.string()
		case 5:
			m.Replace = v.bool()
		}
	})
	return m, err
}

// TarRead asks for a tar of files and trees. Each is named by the last element of its path; a
// path that ends in /. (or is . or /) stands for what is in that directory.
type TarRead struct {
	Paths []string
	// Follow: a path that is a link stands for what it leads to. Links below are never followed.
	Follow bool
}

// Fields encodes it.
func (r *TarRead) Fields() []byte {
	var b []byte
	for _, p := range r.Paths {
		b = appendString(b, 1, p)
	}
	return appendBool(b, 2, r.Follow)
}

// ParseTarRead decodes it.
func ParseTarRead(fields []byte) (*TarRead, error) {
	r := &TarRead{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			r.Paths = append(r.Paths, v.string())
		case 2:
			r.Follow = v.bool()
		}
	})
	return r, err
}

// TarWrite unpacks a tar below a directory. What is there already is replaced, directories are kept. It
// ends at the first entry that cannot be had: whole files that came before it stay.
type TarWrite struct {
	// Path of the directory. If it is a link, it is followed.
	Path string
	// User who shall own everything, as in FileWrite.
	User string
	// KeepOwners: as the numbers in the tar say, instead of User.
	KeepOwners bool
	// Make makes the directory and its parents if they are missing.
	Make bool
}

// Fields encodes it.
func (w *TarWrite) Fields() []byte {
	b := appendString(appendString(nil, 1, w.Path), 2, w.User)
	return appendBool(appendBool(b, 3, w.KeepOwners), 4, w.Make)
}

// ParseTarWrite decodes it.
func ParseTarWrite(fields []byte) (*TarWrite, error) {
	w := &TarWrite{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			w.Path = v.string()
		case 2:
			w.User = v.string()
		case 3:
			w.KeepOwners = v.bool()
		case 4:
			w.Make = v.bool()
		}
	})
	return w, err
}

// Types of a FileEntry, the letters that ls shows.
const (
	TypeFile      = '-'
	TypeDirectory = 'd'
	TypeLink      = 'l'
	TypePipe      = 'p'
	TypeSocket    = 's'
	TypeBlock     = 'b'
	TypeChar      = 'c'
)

// FileEntry is what is known of one file.
type FileEntry struct {
	// Path is the path that was asked for, with what lies below it; Name its last element.
	Path, Name string
	// Type is one of the letters above.
	Type byte
	// Size in bytes. Unsized: the kernel makes the file up as it is read, and its size says nothing.
	Size    int64
	Unsized bool
	// Mode has permissions, set-id and sticky bits.
	Mode uint32
	// ModTime is nanoseconds since 1970.
	ModTime  int64
	UID, GID int
	// User and Group are names by the sandbox's own files, empty where it has none.
	User, Group string
	// Target is where a link leads.
	Target string
	// Problem says why what is in this directory could not be listed.
	Problem string
}

// Fields encodes it.
func (e *FileEntry) Fields() []byte {
	b := appendString(make([]byte, 0, 64+2*len(e.Path)), 1, clip(e.Path, 2*MaxPath))
	b = appendString(b, 2, clip(e.Name, MaxPath))
	b = appendInt(b, 3, int64(e.Type))
	b = appendInt(b, 4, e.Size)
	b = appendBool(b, 5, e.Unsized)
	b = appendInt(b, 6, int64(e.Mode))
	b = appendInt(b, 7, e.ModTime)
	b = appendInt(b, 8, int64(e.UID))
	b = appendInt(b, 9, int64(e.GID))
	for key, text := range []string{10: e.User, 11: e.Group, 12: e.Target, 13: e.Problem} {
		if text != "" {
			b = appendString(b, byte(key), clip(text, MaxPath))
		}
	}
	return b
}

// ParseFileEntry decodes it.
func ParseFileEntry(fields []byte) (*FileEntry, error) {
	e := &FileEntry{}
	err := each(fields, func(key byte, v value) {
		switch key {
		case 1:
			e.Path = clip(v.string(), 2*MaxPath)
		case 2:
			e.Name = clip(v.string(), MaxPath)
		case 3:
			e.Type = byte(v.int())
		case 4:
			e.Size = v.int()
		case 5:
			e.Unsized = v.bool()
		case 6:
			e.Mode = uint32(v.int()) & 0o7777
		case 7:
			e.ModTime = v.int()
		case 8:
			e.UID = int(v.int())
		case 9:
			e.GID = int(v.int())
		case 10:
			e.User = clip(v.string(), maxName)
		case 11:
			e.Group = clip(v.string(), maxName)
		case 12:
			e.Target = clip(v.string(), MaxPath)
		case 13:
			e.Problem = clip(v.string(), MaxPath)
		}
	})
	return e, err
}
