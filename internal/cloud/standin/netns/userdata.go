package netns

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// userData is what a machine takes from its document.
type userData struct {
	HostKeys struct {
		Private string `yaml:"ed25519_private"`
		Public  string `yaml:"ed25519_public"`
	} `yaml:"ssh_keys"`
	Authorized []string `yaml:"ssh_authorized_keys"`
}

// readUserData reads a cloud-config, or a MIME document of several, as cloud-init does. It shares no
// code with the package that writes them: a document that is wrong must fail here.
func readUserData(raw []byte, index int) (*userData, error) {
	parts := [][]byte{raw}
	// cloud-init tells by the first line what a document is. MIME begins with a header.
	if !bytes.HasPrefix(raw, []byte("#")) {
		var err error
		if parts, err = mimeParts(raw); err != nil {
			return nil, fmt.Errorf("netns: the user data is neither a cloud-config nor MIME: %w", err)
		}
	}
	var out userData
	for _, p := range parts {
		p, err := rendered(p, index)
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(p, []byte("#cloud-config")) {
			continue
		}
		var one userData
		if err := yaml.Unmarshal(p, &one); err != nil {
			return nil, fmt.Errorf("netns: the cloud-config cannot be read: %w", err)
		}
		// Of two documents with keys the first wins, as the server means it: an operator's own part comes
		// after it and must not replace them.
		if out.HostKeys.Private == "" {
			out.HostKeys = one.HostKeys
		}
		out.Authorized = append(out.Authorized, one.Authorized...)
	}
	// Such a machine would boot, and nobody could log in. In a cloud that costs a boot time-out.
	if out.HostKeys.Private == "" || len(out.Authorized) == 0 {
		return nil, errors.New("netns: the user data has no host key, or no key that may log in")
	}
	return &out, nil
}

// jinja begins a document that cloud-init renders before it reads it.
const jinja = "## template: jinja\n"

// cases are the only words of that language that a document here may have: one condition, of which
// launch index this is.
var cases = regexp.MustCompile(`^\{% (?:(?:el)?if ds\.meta_data\.ami_launch_index\|int == (\d+)|(endif)) %\}$`)

// rendered is a part as the instance of an index reads it.
func rendered(part []byte, index int) ([]byte, error) {
	rest, ok := bytes.CutPrefix(part, []byte(jinja))
	if !ok {
		return part, nil
	}
	var out []byte
	mine := true // outside of all cases
	for line := range bytes.Lines(rest) {
		word := cases.FindSubmatch(bytes.TrimSpace(line))
		switch {
		case word == nil && bytes.Contains(line, []byte("{%")):
			return nil, fmt.Errorf("netns: the template has %q, which is not rendered here", line)
		case word == nil && mine:
			out = append(out, line...)
		case word == nil:
		case len(word[2]) > 0:
			mine = true
		default:
			mine = string(word[1]) == strconv.Itoa(index)
		}
	}
	return out, nil
}

// mimeParts are the decoded parts of a document.
func mimeParts(raw []byte) ([][]byte, error) {
	m, err := mail.ReadMessage(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") {
		return nil, fmt.Errorf("it is %q and not multipart", kind)
	}
	var out [][]byte
	for r := multipart.NewReader(m.Body, params["boundary"]); ; {
		p, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		var body io.Reader = p
		// NextRawPart leaves the encoding alone; only this one is ever written here.
		if p.Header.Get("Content-Transfer-Encoding") == "base64" {
			body = base64.NewDecoder(base64.StdEncoding, p)
		}
		text, err := io.ReadAll(body)
		if err != nil {
			return nil, err
		}
		out = append(out, text)
	}
}
