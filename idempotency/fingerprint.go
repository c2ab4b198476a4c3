package idempotency

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// The version is stored with each fingerprint. Add one whenever what a fingerprint covers changes. An answer stored under a
// version that is not known, or that may cover something else, is never compared (foundOf).
const (
	versionForm      = 1 // of JSON the canonical form, of everything else the bytes, and no host: of earlier builds
	versionBytes     = 2 // the same, of JSON that is too large to be canonicalised, which builds before that did nevertheless
	versionHostForm  = 3 // the host, and of JSON and forms in parts (multipart/form-data) what they say, of everything else the bytes
	versionHostBytes = 4 // the host, and the bytes of JSON and forms that are too large for that
)

// A fingerprint is its version, then the hash by which requests are compared, then checksums of what it covers, one for each
// of the parts that covered names. They only say what differs when the hash does, for the log. Rows of earlier builds have none, so a
// Guard's Store decides by version and hash: postgres does, and byHash makes any other do so.

// versioned is a fingerprint of a version.
func versioned(version byte, hash []byte) []byte { return append([]byte{version}, hash...) }

// comparedOf is the hash of a fingerprint without its version.
func comparedOf(fingerprint []byte) []byte { return fingerprint[:min(sha256.Size, len(fingerprint))] }

// covered names the parts of a request that a fingerprint covers, as the log does, in the order of their checksums. A Store takes 64
// bytes, so a checksum has three: of 16 million pairs of parts that differ, one seems equal.
var covered = []string{"host", "operation", "method", "path", "query", "media_type", "conditions", "account", "body"}

const checksumSize = 3

// wholeSize is the size of a fingerprint with its checksums, without its version.
var wholeSize = sha256.Size + len(covered)*checksumSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksums are those of covered. form is the body as it is compared.
func (s subject) checksums(tag string, form []byte) []byte {
	sums := make([]byte, 0, len(covered)*checksumSize)
	add := func(crc uint32) { sums = append(sums, byte(crc>>16), byte(crc>>8), byte(crc)) }
	for _, part := range []string{s.host, s.operation, s.method, s.path, s.query, s.mediaType, strings.Join(s.conditions, "\n"), s.principal} {
		add(crc32.Checksum([]byte(part), castagnoli))
	}
	add(crc32.Update(crc32.Checksum([]byte(tag), castagnoli), castagnoli, form))
	return sums
}

// differing names the parts in which the requests of two fingerprints differ, without their versions. It names none if one of them has
// no checksums.
func differing(one, other []byte) (parts []string) {
	if len(one) != wholeSize || len(other) != wholeSize {
		return nil
	}
	for i, name := range covered {
		at := sha256.Size + i*checksumSize
		if !bytes.Equal(one[at:at+checksumSize], other[at:at+checksumSize]) {
			parts = append(parts, name)
		}
	}
	return parts
}

// subject is the input of a fingerprint.
type subject struct {
	operation, method, path, query string
	host                           string // "" if the tenant is known otherwise
	mediaType                      string
	boundary                       string   // of a form in parts
	conditions                     []string // If-Match, If-None-Match
	principal                      string   // set if the scope is wider than one principal
	body                           []byte
	ignore                         []string
}

func subjectOf(r *http.Request, operation string, body []byte) subject {
	media, parameters, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		media = strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Type")))
	}
	return subject{
		operation:  operation,
		method:     r.Method,
		path:       wholePath(r),
		query:      canonicalQuery(r.URL.RawQuery),
		mediaType:  media,
		boundary:   parameters["boundary"],
		conditions: []string{r.Header.Get("If-Match"), r.Header.Get("If-None-Match")},
		body:       body,
	}
}

// errReadBefore says that the body was read before the guard got the request. An empty body would match any other, so
// the request is refused.
var errReadBefore = errors.New("the request's body was read before the middleware, or is empty and came without a length: put the guard outside the code that reads it, or set Route.Fingerprint; code that unpacks it must set Request.ContentLength to -1")

// readBefore returns the original body if code before the guard parsed its form. net/http keeps a parsed form in the
// request, where handlers look for it. left is what remains of the body. An error means that the body is gone, or may
// be. An empty body without a length (chunked) looks like one that was read. A body with a Content-Encoding may have
// been unpacked before, and so be shorter than its length; so may a document that is whole.
func readBefore(r *http.Request, left []byte) (body []byte, err error) {
	switch {
	case len(left) > 0 && int64(len(left)) < r.ContentLength && r.Header.Get("Content-Encoding") == "" && !wholeJSON(left):
		return left, errReadBefore
	case len(left) > 0:
		return left, nil
	case r.MultipartForm != nil:
		return nil, errReadBefore
	case len(r.PostForm) > 0:
		return []byte(r.PostForm.Encode()), nil
	case r.ContentLength != 0:
		return nil, errReadBefore
	}
	return nil, nil
}

// wholeJSON reports whether a body is an object or an array. The rest of one that was begun to be read is none.
func wholeJSON(body []byte) bool {
	trimmed := bytes.TrimLeft(body, " \t\r\n")
	return len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && json.Valid(trimmed)
}

// fingerprint is equal for requests that ask for the same thing, whatever the order of names in JSON and of parameters
// in the query.
func (s subject) fingerprint() []byte {
	form, tag, modest := s.form()
	version := byte(versionHostForm)
	if s.mediaType == formInParts {
		var ok bool
		if form, ok, modest = parts(s.body, s.boundary); ok {
			tag = "parts"
		} else {
			form = s.body
		}
	}
	if !modest {
		version = versionHostBytes
	}
	return append(versioned(version, s.sum(tag, form, s.host)), s.checksums(tag, form)...)
}

// earlier is the fingerprint that builds before versionHostForm gave the same request.
func (s subject) earlier() []byte {
	form, tag, modest := s.form()
	version := byte(versionForm)
	if !modest {
		version = versionBytes
	}
	return versioned(version, s.sum(tag, form))
}

// form is the body as it is compared. modest is false if it is JSON that is too large for a canonical form.
func (s subject) form() (form []byte, tag string, isModest bool) {
	if !isJSON(s.mediaType) {
		return s.body, "bytes", true
	}
	if !modest(s.body) {
		return s.body, "bytes", false
	}
	if c, ok := canonical(s.body, s.ignore); ok {
		return c, "rfc8785", true
	}
	return s.body, "bytes", true
}

func (s subject) sum(tag string, form []byte, more ...string) []byte {
	h := sha256.New()
	part(h, "holdfast/idempotency", s.operation, s.method, s.path, s.query, s.mediaType, s.principal)
	part(h, s.conditions...)
	part(h, more...)
	part(h, tag, string(form))
	return h.Sum(nil)
}

// part writes strings so that no two different lists hash the same.
func part(w io.Writer, strs ...string) {
	var n [8]byte
	for _, s := range strs {
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		_, _ = w.Write(n[:]) // Neither a hash nor a buffer fails.
		_, _ = io.WriteString(w, s)
	}
}

func isJSON(media string) bool {
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// canonicalQuery sorts a query's parameters by name. The values of one name keep their order.
func canonicalQuery(raw string) string {
	type pair struct{ name, value string }
	var pairs []pair
	for _, field := range strings.Split(raw, "&") {
		if field == "" {
			continue
		}
		name, value, _ := strings.Cut(field, "=")
		n, err1 := url.QueryUnescape(name)
		v, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			n, v = name, value
		}
		pairs = append(pairs, pair{n, v})
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return strings.Compare(a.name, b.name) })
	var b strings.Builder
	for _, p := range pairs {
		b.WriteString(url.QueryEscape(p.name) + "=" + url.QueryEscape(p.value) + "&")
	}
	return b.String()
}

// lockNumber is the number of the advisory lock that a running request holds for its key. Two keys with the same number
// wait for each other, which does no other harm.
func lockNumber(schema, scope, operation, key string) int64 {
	h := sha256.New()
	part(h, "holdfast/idempotency/lock", schema, scope, operation, key)
	return int64(binary.BigEndian.Uint64(h.Sum(nil)))
}
