package api

import "time"

// FileEntry is a file, directory or other thing in a sandbox.
type FileEntry struct {
	Path     string    `json:"path"`
	Name     string    `json:"name"`
	Type     string    `json:"type" enum:"file,directory,symlink,fifo,socket,block,char"`
	Size     int64     `json:"size"`
	Mode     string    `json:"mode" doc:"Permission bits in octal, as 0644."`
	Modified time.Time `json:"modified"`
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	User     string    `json:"user,omitempty" doc:"Name of uid inside, if it has one."`
	Group    string    `json:"group,omitempty"`
	Target   string    `json:"target,omitempty" doc:"Of a symlink."`
	Unsized  bool      `json:"unsized,omitempty" doc:"The kernel generates it when it is read: its size means nothing."`
	Problem  string    `json:"problem,omitempty" doc:"Why this directory could not be listed."`
}

// Types of FileEntry.
const (
	FileRegular   = "file"
	FileDirectory = "directory"
	FileSymlink   = "symlink"
	FileFIFO      = "fifo"
	FileSocket    = "socket"
	FileBlock     = "block"
	FileChar      = "char"
)

// FileList is the answer of GET …/files.
type FileList struct {
	Entries []FileEntry `json:"entries"`
	More    bool        `json:"more,omitempty" doc:"There are more than the limit."`
}

// FileChange is the body of PATCH …/files: small files at once. What is larger goes by PUT …/files/content.
type FileChange struct {
	Delete []string      `json:"delete,omitempty" doc:"These are deleted first, directories with their content; a missing one is no error."`
	Write  []FileContent `json:"write,omitempty" doc:"Then these are written, each atomically; missing parent directories are made."`
}

// FileContent is one file of a FileChange, or a directory.
type FileContent struct {
	Path          string `json:"path" doc:"Absolute, or relative to the directory in which the allocation's command started. With a / at its end: a directory."`
	Content       string `json:"content,omitempty" doc:"As text."`
	ContentBase64 []byte `json:"content_base64,omitempty" doc:"Instead of content: in base64."`
	Mode          string `json:"mode,omitempty" doc:"Permission bits in octal. Default: those of the file that is replaced, else 0644; of a directory 0755."`
	User          string `json:"user,omitempty" doc:"Its owner. Default: the allocation's user."`
}

// FileMaxChange is how many paths one FileChange may name.
const FileMaxChange = 1000

// FileMaxList is the most entries of one list.
const FileMaxList = 10000

// Codes of problems with files, beside not-found, conflict and invalid. The
// path is in the problem's errors.
const (
	CodeExists       = "exists"          // 409
	CodeIsDirectory  = "is-a-directory"  // 409
	CodeNotDirectory = "not-a-directory" // 409
	CodeNotEmpty     = "not-empty"       // 409
	CodeLoop         = "loop"            // 409
	CodeBusy         = "busy"            // 409
	CodePermission   = "permission"      // 403
	CodeNoSpace      = "no-space"        // 507
	CodeTooLarge     = "too-large"       // 413
)

// Headers of GET and HEAD …/files/content.
const (
	HeaderFileSize = "Muster-File-Size"
	HeaderFileMode = "Muster-File-Mode"
)
