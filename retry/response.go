package retry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// retryAfter reads both forms of Retry-After (RFC 9110, section 10.2.3): a whole number of seconds, or an HTTP date. A
// date counts from the answer's own Date if it has one, so that differing clocks don't matter, otherwise from now. A
// date in the past means 0. ok is false if the header is absent or malformed; then it is ignored.
func retryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true // all digits, so it can only be too large: longer than any budget
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(at.Sub(now), 0), true
}

// problemBytes is how many bytes of a problem are read to find its code. Ours have a few hundred.
const problemBytes = 16 << 10

// problemCode returns the member "code" of a problem (RFC 9457) in a 409. For any other answer it returns "", because
// there the code decides nothing. Afterwards the body can still be read from its start. An error is an error of the
// connection.
func problemCode(resp *http.Response) (string, error) {
	if resp.StatusCode != http.StatusConflict || resp.Body == nil {
		return "", nil
	}
	if kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || kind != "application/problem+json" {
		return "", nil
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, problemBytes))
	if err != nil {
		return "", fmt.Errorf("read problem: %w", err)
	}
	resp.Body = &reread{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
	var problem struct {
		Code string `json:"code"`
	}
	if json.Unmarshal(text, &problem) != nil {
		return "", nil // so not one of ours
	}
	return problem.Code, nil
}

// reread is a body that can be read from its start, although its first bytes were read already.
type reread struct {
	io.Reader
	io.Closer
}

// Limits of drain. A connection is reused only if the last response's body was read to the end. Beyond these limits a
// new connection is cheaper.
const (
	drainBytes = 64 << 10
	drainTime  = 100 * time.Millisecond
)

// drain reads the rest of body, at most drainBytes and for at most drainTime, and closes it. cancel must end a read of
// body that hangs; drain has called it when it returns.
func drain(body io.ReadCloser, cancel context.CancelFunc) {
	hung := time.AfterFunc(drainTime, cancel)
	defer hung.Stop()
	_, _ = io.CopyN(io.Discard, body, drainBytes+1) // an error only means that the connection isn't used again
	_ = body.Close()
	cancel()
}

// withCancel returns body, and calls cancel after its Close, or at once if there is nothing to read. A body that can
// also be written to (the answer 101 Switching Protocols) stays writable. http.RoundTripper forbids a nil body, but
// hand-made ones return it; it counts as empty.
func withCancel(body io.ReadCloser, cancel context.CancelFunc) io.ReadCloser {
	if body == nil || body == http.NoBody {
		cancel()
		return http.NoBody
	}
	if both, ok := body.(io.ReadWriteCloser); ok {
		return &cancelingConn{both, cancel}
	}
	return &cancelingBody{body, cancel}
}

type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *cancelingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

type cancelingConn struct {
	io.ReadWriteCloser
	cancel context.CancelFunc
}

func (c *cancelingConn) Close() error {
	defer c.cancel()
	return c.ReadWriteCloser.Close()
}
