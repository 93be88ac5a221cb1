package ec2

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// A page of a list has a thousand instances of some eighty elements each, of which the driver needs
// twenty. encoding/xml takes a tenth of a second and tens of megabytes for such a page, so lists have
// a reader of their own. It reads what EC2 writes: elements, attributes that it skips, text with
// entities, comments. Everything else, and a page that is not whole, is an error.

// scanner reads elements one after the other.
type scanner struct {
	b    []byte
	path [][]byte
	// text is that of the element that ends, raw, where it has no elements in it.
	text []byte
	leaf bool
	// closes is the end of an element like <a/>, which is still to come.
	closes bool
}

var errCut = errors.New("it ends in the middle")

// next goes to the next begin or end of an element, and reports which it is. At an end the path
// still has the element. The end of the document is done.
func (s *scanner) next() (begins, done bool, err error) {
	if s.closes {
		s.closes = false
		s.text = nil
		return false, false, nil
	}
	for {
		at := bytes.IndexByte(s.b, '<')
		if at < 0 {
			if len(s.path) > 0 {
				return false, false, errCut
			}
			return false, true, nil
		}
		text := s.b[:at]
		s.b = s.b[at+1:]
		end := bytes.IndexByte(s.b, '>')
		if end < 1 {
			return false, false, errCut
		}
		tag := s.b[:end]
		switch {
		case bytes.HasPrefix(tag, []byte("!--")):
			if end = bytes.Index(s.b, []byte("-->")); end < 0 {
				return false, false, errCut
			}
			s.b = s.b[end+3:]
			s.leaf = false
			continue
		case tag[0] == '?':
			s.b = s.b[end+1:]
			continue
		case tag[0] == '!':
			return false, false, errors.New("it has a declaration")
		}
		s.b = s.b[end+1:]
		if tag[0] == '/' {
			name := bytes.TrimRight(tag[1:], " \t\r\n")
			if len(s.path) == 0 || !bytes.Equal(name, s.path[len(s.path)-1]) {
				return false, false, fmt.Errorf("</%.50s> ends nothing", name)
			}
			s.text = nil
			if s.leaf {
				s.text = text
			}
			return false, false, nil
		}
		s.closes = tag[len(tag)-1] == '/'
		name := bytes.TrimSuffix(tag, []byte("/"))
		if space := bytes.IndexAny(name, " \t\r\n"); space >= 0 {
			name = name[:space]
		}
		s.path, s.leaf = append(s.path, name), true
		return true, false, nil
	}
}

// leave takes the element that has ended off the path.
func (s *scanner) leave() {
	s.path = s.path[:len(s.path)-1]
	s.leaf = false
}

// plain is text without its entities. What is not one of XML's own is an error.
func plain(text []byte) ([]byte, error) {
	at := bytes.IndexByte(text, '&')
	if at < 0 {
		return text, nil
	}
	var out []byte
	for ; at >= 0; at = bytes.IndexByte(text, '&') {
		out = append(out, text[:at]...)
		end := bytes.IndexByte(text[at:], ';')
		if end < 0 {
			return nil, errors.New("an entity has no end")
		}
		name := string(text[at+1 : at+end])
		text = text[at+end+1:]
		switch name {
		case "lt":
			out = append(out, '<')
		case "gt":
			out = append(out, '>')
		case "amp":
			out = append(out, '&')
		case "quot":
			out = append(out, '"')
		case "apos":
			out = append(out, '\'')
		default:
			r, err := rune(0), errors.New("unknown entity")
			if len(name) > 1 && name[0] == '#' {
				base, digits := 10, name[1:]
				if digits[0] == 'x' {
					base, digits = 16, digits[1:]
				}
				var n uint64
				n, err = strconv.ParseUint(digits, base, 21)
				r = rune(n)
			}
			if err != nil {
				return nil, fmt.Errorf("entity %.20q: %w", name, err)
			}
			out = utf8.AppendRune(out, r)
		}
	}
	return append(out, text...), nil
}

// page reads a DescribeInstances answer.
type page struct {
	s     scanner
	out   instancesAnswer
	words map[string]string // one copy of what occurs often, as zones and the names of tags
	tag   wireTag
}

// readInstances reads an answer of DescribeInstances as encoding/xml would.
func readInstances(body []byte) (*instancesAnswer, error) {
	p := page{s: scanner{b: body, path: make([][]byte, 0, 16)}, words: map[string]string{}}
	root := false
	for {
		begins, done, err := p.s.next()
		switch {
		case err != nil:
			return nil, err
		case done && !root:
			return nil, errors.New("it is empty")
		case done:
			return &p.out, nil
		case begins && len(p.s.path) == 1:
			if root || string(p.s.path[0]) != "DescribeInstancesResponse" {
				return nil, fmt.Errorf("it begins with <%.100s>", p.s.path[0])
			}
			root = true
		case begins:
			p.begin()
		default:
			if err := p.end(); err != nil {
				return nil, err
			}
			p.s.leave()
		}
	}
}

// is reports whether the path below the root is this.
func (p *page) is(names ...string) bool {
	if len(p.s.path) != len(names)+1 {
		return false
	}
	for i, n := range names {
		if string(p.s.path[i+1]) != n {
			return false
		}
	}
	return true
}

func (p *page) begin() {
	switch len(p.s.path) {
	case 3:
		if p.is("reservationSet", "item") {
			p.out.Reservations = append(p.out.Reservations, reservation{})
		}
	case 5:
		if p.is("reservationSet", "item", "instancesSet", "item") {
			r := &p.out.Reservations[len(p.out.Reservations)-1]
			r.Instances = append(r.Instances, wireInstance{})
		}
	case 7:
		p.tag = wireTag{}
	}
}

// instance is the one that the path is in; nil: none.
func (p *page) instance() *wireInstance {
	if len(p.s.path) < 6 || string(p.s.path[1]) != "reservationSet" || string(p.s.path[2]) != "item" || string(p.s.path[3]) != "instancesSet" || string(p.s.path[4]) != "item" {
		return nil
	}
	r := &p.out.Reservations[len(p.out.Reservations)-1]
	return &r.Instances[len(r.Instances)-1]
}

// end takes over the element that ends.
func (p *page) end() error {
	if p.is("nextToken") {
		text, err := plain(p.s.text)
		p.out.Next = string(text)
		return err
	}
	w := p.instance()
	if w == nil {
		return nil
	}
	last := string(p.s.path[len(p.s.path)-1])
	switch len(p.s.path) {
	case 6:
		return p.field(w, last)
	case 7:
		if last == "item" && string(p.s.path[5]) == "tagSet" {
			w.Tags = append(w.Tags, p.tag)
			return nil
		}
		return p.part(w, string(p.s.path[5]), last)
	case 8:
		if string(p.s.path[5]) != "tagSet" || string(p.s.path[6]) != "item" {
			return nil
		}
		switch last {
		case "key":
			return p.word(&p.tag.Key)
		case "value":
			return p.word(&p.tag.Value)
		}
	}
	return nil
}

// field takes over an element of an instance.
func (p *page) field(w *wireInstance, name string) error {
	switch name {
	case "instanceId":
		return p.word(&w.ID)
	case "instanceType":
		return p.word(&w.Type)
	case "privateIpAddress":
		return p.word(&w.Private)
	case "ipAddress":
		return p.word(&w.Public)
	case "instanceLifecycle":
		return p.word(&w.Lifecycle)
	case "amiLaunchIndex":
		n, err := strconv.Atoi(string(bytes.TrimSpace(p.s.text)))
		w.Index = n
		return err
	case "launchTime":
		t, err := time.Parse(time.RFC3339, string(bytes.TrimSpace(p.s.text)))
		w.Launched = t
		return err
	}
	return nil
}

// part takes over an element of an element of an instance.
func (p *page) part(w *wireInstance, of, name string) error {
	switch of + " " + name {
	case "instanceState name":
		return p.word(&w.State)
	case "placement availabilityZone":
		return p.word(&w.Zone)
	case "stateReason code":
		return p.word(&w.Reason)
	case "stateReason message":
		return p.word(&w.ReasonText)
	}
	return nil
}

// word takes over the text of the element that ends.
func (p *page) word(to *string) error {
	text, err := plain(p.s.text)
	if err != nil {
		return err
	}
	word, ok := p.words[string(text)]
	if !ok {
		word = string(text)
		p.words[word] = word
	}
	*to = word
	return nil
}
