package ec2

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"slices"
	"strings"
)

// The instances of one launch have the same user data, and each must show a host key of its own.
// cloud-init renders a document that begins with "## template: jinja" before it reads it, and knows
// the launch index of the instance by then. So the lines in which the documents differ become the
// cases of one template.

const (
	// maxUserData is EC2's bound in bytes, before base64.
	maxUserData = 16 << 10

	jinjaHeader = "## template: jinja\n"
	launchIndex = "ds.meta_data.ami_launch_index|int"
)

// sharedUserData is one document for instances that want these, by launch index. It reports whether
// there is one: all must have the same form, and the result must fit.
func sharedUserData(documents []string) (string, bool) {
	first := documents[0]
	if !slices.ContainsFunc(documents, func(d string) bool { return d != first }) {
		return first, len(first) <= maxUserData
	}
	shared, ok := "", false
	if strings.HasPrefix(first, "#cloud-config\n") {
		shared, ok = template(documents)
	} else if strings.HasPrefix(first, "Content-Type: multipart/mixed;") {
		shared, ok = sharedMultipart(documents)
	}
	return shared, ok && len(shared) <= maxUserData
}

// template makes one cloud-config of several that differ in a run of lines.
func template(documents []string) (string, bool) {
	lines := make([][]string, len(documents))
	for i, d := range documents {
		// What the template's language could take for its own is left alone.
		if !strings.HasPrefix(d, "#cloud-config\n") || strings.Contains(d, "{{") || strings.Contains(d, "{%") || strings.Contains(d, "{#") {
			return "", false
		}
		lines[i] = strings.SplitAfter(strings.TrimSuffix(d, "\n")+"\n", "\n")
		lines[i] = lines[i][:len(lines[i])-1]
	}
	before := common(lines, func(l []string, n int) string { return l[n] })
	// The case begins at a line that is not indented: it may not divide a value.
	for before > 1 && strings.HasPrefix(lines[0][before], " ") {
		before--
	}
	rest := make([][]string, len(lines))
	for i := range lines {
		rest[i] = lines[i][before:]
	}
	after := common(rest, func(l []string, n int) string { return l[len(l)-1-n] })
	for after > 0 && strings.HasPrefix(rest[0][len(rest[0])-after], " ") {
		after--
	}
	var b strings.Builder
	b.WriteString(jinjaHeader + strings.Join(lines[0][:before], ""))
	for i, l := range rest {
		word := "elif"
		if i == 0 {
			word = "if"
		}
		fmt.Fprintf(&b, "{%% %s %s == %d %%}\n%s", word, launchIndex, i, strings.Join(l[:len(l)-after], ""))
	}
	b.WriteString("{% endif %}\n" + strings.Join(rest[0][len(rest[0])-after:], ""))
	return b.String(), true
}

// common is how many lines all have in common, counted by at.
func common(all [][]string, at func(lines []string, n int) string) int {
	least := len(all[0])
	for _, l := range all {
		least = min(least, len(l))
	}
	// One line at least is left to be the case.
	for n := range max(least-1, 0) {
		for _, l := range all[1:] {
			if at(l, n) != at(all[0], n) {
				return n
			}
		}
	}
	return max(least-1, 0)
}

// part is one part of a document of several.
type part struct {
	kind, merge, text string
}

// sharedMultipart makes one document of several, each of which is a cloud-config and the operator's
// own part.
func sharedMultipart(documents []string) (string, bool) {
	var all [][]part
	for _, d := range documents {
		parts, err := partsOf(d)
		if err != nil || len(parts) == 0 || len(all) > 0 && (len(parts) != len(all[0]) || !slices.Equal(parts[1:], all[0][1:])) {
			return "", false
		}
		all = append(all, parts)
	}
	configs := make([]string, len(all))
	for i := range all {
		configs[i] = all[i][0].text
	}
	shared, ok := template(configs)
	if !ok {
		return "", false
	}
	parts := slices.Clone(all[0])
	parts[0].kind, parts[0].text = `text/jinja2; charset="utf-8"`, shared
	var b bytes.Buffer
	const boundary = "muster-4e1c77b0a2"
	fmt.Fprintf(&b, "Content-Type: multipart/mixed; boundary=%q\nMIME-Version: 1.0\n\n", boundary)
	for _, p := range parts {
		fmt.Fprintf(&b, "--%s\nContent-Type: %s\nMIME-Version: 1.0\nContent-Transfer-Encoding: base64\n", boundary, p.kind)
		if p.merge != "" {
			fmt.Fprintf(&b, "Merge-Type: %s\n", p.merge)
		}
		b.WriteString("\n" + base64.StdEncoding.EncodeToString([]byte(p.text)) + "\n")
	}
	fmt.Fprintf(&b, "--%s--\n", boundary)
	return b.String(), true
}

// partsOf takes a document apart.
func partsOf(document string) ([]part, error) {
	m, err := mail.ReadMessage(strings.NewReader(document))
	if err != nil {
		return nil, err
	}
	_, fields, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	if err != nil {
		return nil, err
	}
	var out []part
	for r := multipart.NewReader(m.Body, fields["boundary"]); ; {
		p, err := r.NextRawPart()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, p))
		if err != nil {
			return nil, err
		}
		out = append(out, part{kind: p.Header.Get("Content-Type"), merge: p.Header.Get("Merge-Type"), text: string(text)})
	}
}
