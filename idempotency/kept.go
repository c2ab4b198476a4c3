package idempotency

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// This file turns a request into its stored form and back. No clock, no database.

// DefaultCompleteHeaders returns the headers that are stored of a request whose route has Complete.
// Route.CompleteHeaders adds to them.
func DefaultCompleteHeaders() []string { return slices.Clone(completeHeaders) }

var completeHeaders = []string{
	"Accept", "Accept-Language", "Content-Encoding", "Content-Language", "Content-Type", "If-Match", "If-None-Match", "Traceparent", "Tracestate",
	"User-Agent", "X-Correlation-Id", "X-Request-Id",
}

// neverKept are headers that Route.CompleteHeaders must not name. With them, anybody who can read the row could act as
// the client.
var neverKept = []string{"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Csrf-Token"}

// maxKeptHeader is the maximum size of a stored header in bytes. A longer one is left out.
const maxKeptHeader = 8 << 10

// keptRequest is the stored form of a request.
type keptRequest struct {
	route      string // Route.Operation
	principal  string
	method     string
	host       string
	url        string
	pattern    string            // the router's
	pathValues map[string]string // by name in the pattern
	headers    http.Header
	body       []byte
}

// keep returns the stored form of a request, with the headers of DefaultCompleteHeaders and those of more.
func keep(req *request, more []string) *keptRequest {
	r := req.Request
	k := &keptRequest{
		route: req.info.Operation, principal: req.info.Principal, method: r.Method, host: r.Host, url: r.URL.RequestURI(),
		pattern: r.Pattern, pathValues: map[string]string{}, headers: http.Header{}, body: req.body,
	}
	for _, name := range wildcards(r.Pattern) {
		k.pathValues[name] = r.PathValue(name)
	}
	for _, name := range slices.Concat(completeHeaders, more) {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if values := r.Header[name]; len(values) > 0 && len(strings.Join(values, "")) <= maxKeptHeader {
			k.headers[name] = values
		}
	}
	return k
}

// queryNamed reports whether a query has no parameters but these.
func queryNamed(query string, names []string) bool {
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if pair != "" && (err != nil || !slices.Contains(names, name)) {
			return false
		}
	}
	return true
}

// secretParameters are parts of the names of parameters that Route.CompleteQuery must not have.
var secretParameters = []string{"token", "secret", "password", "signature", "api_key", "apikey", "authorization"}

var wildcard = regexp.MustCompile(`\{([^{}]+)\}`)

// wildcards returns the names in a pattern of http.ServeMux.
func wildcards(pattern string) (names []string) {
	for _, m := range wildcard.FindAllStringSubmatch(pattern, -1) {
		if name := strings.TrimSuffix(m[1], "..."); name != "$" {
			names = append(names, name)
		}
	}
	return names
}

// columns returns the columns route to body of idempotency_request; all nil if k is nil.
func (k *keptRequest) columns() []any {
	if k == nil {
		return []any{nil, nil, nil, nil, nil, nil, nil, nil, nil}
	}
	values, err := json.Marshal(latin(k.pathValues))
	if err != nil {
		panic(err) // strings always encode
	}
	headers, err := headersText(k.headers)
	if err != nil {
		panic(err) // likewise
	}
	return []any{k.route, k.principal, k.method, latin1(k.host), latin1(k.url), latin1(k.pattern), string(values), headers, append([]byte{}, k.body...)}
}

// latin1 turns any bytes into text that Postgres can store: each byte becomes the character of that number. A NUL is
// left out; net/http accepts none there.
func latin1(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c != 0 {
			b.WriteRune(rune(c))
		}
	}
	return b.String()
}

func latin(values map[string]string) map[string]string {
	out := make(map[string]string, len(values))
	for name, value := range values {
		out[latin1(name)] = latin1(value)
	}
	return out
}

// bytesOf is the reverse of latin1.
func bytesOf(s string) string {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		b = append(b, byte(c))
	}
	return string(b)
}

// read reads the JSON that columns wrote.
func (k *keptRequest) read(pathValues, headers string) (err error) {
	if err := json.Unmarshal([]byte(pathValues), &k.pathValues); err != nil {
		return fmt.Errorf("read kept request: %w", err)
	}
	if k.headers, err = headersOf(headers); err != nil {
		return fmt.Errorf("read kept request: %w", err)
	}
	return nil
}

// request makes a request from its stored form.
func (k *keptRequest) request(ctx context.Context, key string) (*http.Request, error) {
	at, err := url.ParseRequestURI(bytesOf(k.url))
	if err != nil {
		return nil, fmt.Errorf("read kept request: %w", err)
	}
	r := (&http.Request{
		Method: k.method, Pattern: bytesOf(k.pattern), URL: at, RequestURI: bytesOf(k.url), Host: bytesOf(k.host), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: k.headers.Clone(), Body: io.NopCloser(bytes.NewReader(k.body)), ContentLength: int64(len(k.body)),
	}).WithContext(ctx)
	if r.Header == nil {
		r.Header = http.Header{}
	}
	r.Header.Set("Idempotency-Key", key)
	for name, value := range k.pathValues {
		r.SetPathValue(bytesOf(name), bytesOf(value))
	}
	return r, nil
}
