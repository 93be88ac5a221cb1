package ec2test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// failure is a refusal as EC2 writes it.
type failure struct {
	status        int
	code, message string
}

// fail makes a refusal. Clients go by the code: the same status stands for many.
func fail(status int, code, format string, args ...any) *failure {
	return &failure{status, code, fmt.Sprintf(format, args...)}
}

// xml is the failure as EC2 writes it, with the request's id in another case than answers have it.
func (f *failure) xml(request string) string {
	return header + `<Response><Errors><Error>` + el("Code", f.code) + el("Message", f.message) + `</Error></Errors>` + el("RequestID", request) + `</Response>`
}

// json is the failure as the parameter store and the price list write it.
func (f *failure) json() string {
	b, _ := json.Marshal(map[string]string{"__type": f.code, "message": f.message})
	return string(b)
}

// header begins every document.
const header = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"

// response is the answer of an action.
func response(action, request, inner string) string {
	return header + `<` + action + `Response xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">` + el("requestId", request) + inner + `</` + action + `Response>`
}

// el is an element with text; no element if there is none.
func el(name, text string) string {
	if text == "" {
		return ""
	}
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text))
	return "<" + name + ">" + b.String() + "</" + name + ">"
}

// nest is an element around others.
func nest(name string, inner ...string) string {
	return "<" + name + ">" + strings.Join(inner, "") + "</" + name + ">"
}

func itoa(n int) string { return strconv.Itoa(n) }

// stamp is a time as EC2 writes it, always with thousandths.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// tagsXML writes empty values as well: an empty intent is a tag, and no tag is another thing.
func tagsXML(tags []tag) string {
	var b strings.Builder
	for _, t := range tags {
		b.WriteString(nest("item", el("key", t.key), "<value>"+escaped(t.value)+"</value>"))
	}
	return nest("tagSet", b.String())
}

// escaped keeps a value that looks like XML a value.
func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s))
	return b.String()
}

// abort ends the connection without an answer, or in the middle of one.
func abort(w http.ResponseWriter, part string, of int) {
	if part != "" {
		w.Header().Set("Content-Length", itoa(of))
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(part))
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
	}
	// net/http closes the connection on this and logs nothing.
	panic(http.ErrAbortHandler)
}
