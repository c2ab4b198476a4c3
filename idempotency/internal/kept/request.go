// Package kept has the forms in which a row keeps a request (Route.Complete) and the headers of an answer. No clock, no database.
package kept

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

// DefaultHeaders are the headers that are kept of every request.
var DefaultHeaders = []string{
	"Accept", "Accept-Language", "Content-Encoding", "Content-Language", "Content-Type", "If-Match", "If-None-Match", "Traceparent", "Tracestate",
	"User-Agent", "X-Correlation-Id", "X-Request-Id",
}

// credentials are headers that must not be kept. With them, anybody who can read the row could act as the client.
var credentials = []string{"Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "X-Auth-Token", "X-Csrf-Token"}

// HasCredentials reports that a header of this name must not be kept.
func HasCredentials(header string) bool {
	return slices.Contains(credentials, textproto.CanonicalMIMEHeaderKey(header))
}

// secrets are parts of the names of a query's parameters that must not be kept.
var secrets = []string{"token", "secret", "password", "signature", "api_key", "apikey", "authorization"}

// IsSecret reports that a query's parameter of this name must not be kept.
func IsSecret(parameter string) bool {
	return slices.ContainsFunc(secrets, func(part string) bool { return strings.Contains(strings.ToLower(parameter), part) })
}

// maxHeader is the maximum size of a stored header in bytes. A longer one is left out.
const maxHeader = 8 << 10

// Request is a request as a row keeps it.
type Request struct {
	Route      string // Route.Operation
	Principal  string
	Method     string
	Host       string
	URL        string
	Pattern    string            // the router's
	PathValues map[string]string // by name in the pattern
	Headers    http.Header
	Body       []byte
}

// Of is what is kept of r, with the headers of DefaultHeaders and those of more.
func Of(r *http.Request, route, principal string, body []byte, more []string) *Request {
	k := &Request{
		Route:      route,
		Principal:  principal,
		Method:     r.Method,
		Host:       r.Host,
		URL:        r.URL.RequestURI(),
		Pattern:    r.Pattern,
		PathValues: map[string]string{},
		Headers:    http.Header{},
		Body:       body,
	}
	for _, name := range wildcards(r.Pattern) {
		k.PathValues[name] = r.PathValue(name)
	}
	for _, name := range slices.Concat(DefaultHeaders, more) {
		name = textproto.CanonicalMIMEHeaderKey(name)
		if values := r.Header[name]; len(values) > 0 && len(strings.Join(values, "")) <= maxHeader {
			k.Headers[name] = values
		}
	}
	return k
}

// QueryNamed reports whether a query has no parameters but these.
func QueryNamed(query string, names []string) bool {
	for pair := range strings.SplitSeq(query, "&") {
		name, _, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if pair != "" && (err != nil || !slices.Contains(names, name)) {
			return false
		}
	}
	return true
}

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

// Columns are the columns route to body of idempotency_request; all nil if r is nil.
func (r *Request) Columns() []any {
	if r == nil {
		return []any{nil, nil, nil, nil, nil, nil, nil, nil, nil}
	}
	values, err := json.Marshal(latin(r.PathValues))
	if err != nil {
		panic(err) // strings always encode
	}
	headers, err := HeadersText(r.Headers)
	if err != nil {
		panic(err) // likewise
	}
	return []any{r.Route, r.Principal, r.Method, latin1(r.Host), latin1(r.URL), latin1(r.Pattern), string(values), headers, append([]byte{}, r.Body...)}
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

// Read reads the JSON that Columns wrote of PathValues and Headers.
func (r *Request) Read(pathValues, headers string) (err error) {
	if err := json.Unmarshal([]byte(pathValues), &r.PathValues); err != nil {
		return fmt.Errorf("read kept request: %w", err)
	}
	if r.Headers, err = HeadersOf(headers); err != nil {
		return fmt.Errorf("read kept request: %w", err)
	}
	return nil
}

// Restore makes a request of what was kept, and gives it its key.
func (r *Request) Restore(ctx context.Context, key string) (*http.Request, error) {
	at, err := url.ParseRequestURI(bytesOf(r.URL))
	if err != nil {
		return nil, fmt.Errorf("read kept request: %w", err)
	}
	request := (&http.Request{
		Method:        r.Method,
		Pattern:       bytesOf(r.Pattern),
		URL:           at,
		RequestURI:    bytesOf(r.URL),
		Host:          bytesOf(r.Host),
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        r.Headers.Clone(),
		Body:          io.NopCloser(bytes.NewReader(r.Body)),
		ContentLength: int64(len(r.Body)),
	}).WithContext(ctx)
	if request.Header == nil {
		request.Header = http.Header{}
	}
	request.Header.Set("Idempotency-Key", key)
	for name, value := range r.PathValues {
		request.SetPathValue(bytesOf(name), bytesOf(value))
	}
	return request, nil
}
