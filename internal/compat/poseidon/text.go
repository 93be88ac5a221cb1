package poseidon

import "unicode/utf8"

// text makes whole letters of the bytes of a stream: one that is cut in two by the way they come is
// kept until the rest is there.
type text struct{ kept []byte }

// next is what can be said after some more bytes came; it is good until the following call.
func (t *text) next(data []byte) []byte {
	all := append(t.kept, data...)
	cut := len(all)
	for i := 1; i < utf8.UTFMax && i <= len(all); i++ {
		if c := all[len(all)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(all[len(all)-i:]) {
				cut = len(all) - i
			}
			break
		}
	}
	out := all[:cut:cut]
	t.kept = append([]byte(nil), all[cut:]...)
	return out
}

// rest is what is left at the end.
func (t *text) rest() []byte { return t.kept }
