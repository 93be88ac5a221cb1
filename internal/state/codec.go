package state

import (
	"errors"
	"fmt"

	"github.com/fxamacker/cbor/v2"
)

// factVersion is written with each fact; a reader refuses a higher one.
const factVersion = 1

type envelope struct {
	_       struct{} `cbor:",toarray"`
	Kind    kind
	Version uint8
	Body    cbor.RawMessage
}

// codec is deterministic on the way out and refuses unknown fields on the way in: see Format.
type codec struct {
	enc cbor.EncMode
	// dec skips unknown fields. It is for what every version reads: envelopes and headers.
	dec, strict cbor.DecMode
}

func newCodec() (codec, error) {
	enc, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		return codec{}, err
	}
	// Text that is not UTF-8 is read as it is: what was committed must always be readable.
	options := cbor.DecOptions{MaxArrayElements: 1 << 24, MaxMapPairs: 1 << 20, MaxNestedLevels: 32, UTF8: cbor.UTF8DecodeInvalid}
	dec, err := options.DecMode()
	if err != nil {
		return codec{}, err
	}
	options.ExtraReturnErrors = cbor.ExtraDecErrorUnknownField
	strict, err := options.DecMode()
	return codec{enc, dec, strict}, err
}

// read reads a fact or a row. A field that v does not have is an error: a newer version wrote it.
func (c *codec) read(b []byte, v any) error {
	err := c.strict.Unmarshal(b, v)
	if unknown := (*cbor.UnknownFieldError)(nil); errors.As(err, &unknown) {
		return fmt.Errorf("%T has a field that this version does not know: %w", v, &NewerError{})
	}
	return err
}

// Encode writes a fact as one proposal.
func (s *State) Encode(f Fact) ([]byte, error) {
	body, err := s.codec.enc.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", f, err)
	}
	return s.codec.enc.Marshal(envelope{Kind: kindOf(f), Version: factVersion, Body: body})
}

// UnreadableError says that a committed fact cannot be read. Going on without
// it would be another state than that of who wrote it.
type UnreadableError struct{ Err error }

func (e *UnreadableError) Error() string { return e.Err.Error() }
func (e *UnreadableError) Unwrap() error { return e.Err }

// Decode reads a proposal. Its errors are *UnreadableError.
func (s *State) Decode(b []byte) (Fact, error) {
	var e envelope
	if err := s.codec.dec.Unmarshal(b, &e); err != nil {
		return nil, &UnreadableError{fmt.Errorf("decode fact: %w", err)}
	}
	f := blank(e.Kind)
	if f == nil || e.Version > factVersion {
		return nil, &UnreadableError{fmt.Errorf("fact of kind %d version %d is unknown: %w", e.Kind, e.Version, &NewerError{})}
	}
	if err := s.codec.read(e.Body, f); err != nil {
		return nil, &UnreadableError{fmt.Errorf("decode %T: %w", f, err)}
	}
	if raised, is := f.(*FormatRaised); is && raised.Format > FormatNewest {
		return nil, &UnreadableError{&NewerError{Format: raised.Format, By: raised.By}}
	}
	return f, nil
}
