package idempotency

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"maps"
	"mime/multipart"
	"slices"
)

// This file makes forms in parts comparable. A client draws the boundary between the parts anew for each attempt, so the
// bytes of two attempts differ, and their parts do not.

const formInParts = "multipart/form-data"

// maxParts is how many parts a form has at most that is compared by them. A larger one is compared by its bytes.
const maxParts = 1000

// parts is the SHA-256 of what a form says: the headers and the content of each part, in their order. ok is false if it is not
// a form with this boundary, or not a modest one.
func parts(body []byte, boundary string) (hash []byte, ok, modest bool) {
	if boundary == "" {
		return nil, false, true
	}
	sum := sha256.New()
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for n := 0; ; n++ {
		p, err := r.NextRawPart()
		switch {
		case errors.Is(err, io.EOF):
			return sum.Sum(nil), n > 0, true
		case err != nil:
			return nil, false, true
		case n == maxParts:
			return nil, false, false
		}
		for _, name := range slices.Sorted(maps.Keys(p.Header)) {
			for _, value := range p.Header[name] {
				part(sum, name, value)
			}
		}
		content := sha256.New()
		if _, err := io.Copy(content, p); err != nil {
			return nil, false, true
		}
		part(sum, "", string(content.Sum(nil))) // No header has an empty name.
	}
}
