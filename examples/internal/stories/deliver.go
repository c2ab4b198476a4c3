package stories

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// Deliver sends a webhook as its provider does, and returns how it was answered.
func Deliver(ctx context.Context, url string, signed http.Header, body []byte) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	req.Header = signed.Clone()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
