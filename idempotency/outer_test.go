package idempotency

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"
)

// gzipWriter compresses an answer.
type gzipWriter struct {
	http.ResponseWriter
	to *gzip.Writer
}

func (w gzipWriter) WriteHeader(status int) {
	w.Header().Del("Content-Length")
	w.ResponseWriter.WriteHeader(status)
}

func (w gzipWriter) Write(p []byte) (int, error) { return w.to.Write(p) }

// compressing says what it will do before it calls the next, as many such middlewares do.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Frame", "outer")
		if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		to := gzip.NewWriter(w)
		defer to.Close()
		next.ServeHTTP(gzipWriter{w, to}, r)
	})
}

// R5.
func TestOuter_WhatAnOuterMiddlewareSaysBeforeTheHandlerRunsIsNotStored(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			o.ReplayHeaders = []string{"X-Frame"}
			h := compressing(b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "private") // other than what was said outside
				w.Header().Set("Content-Language", "en")
				w.WriteHeader(201)
				_, _ = io.WriteString(w, "in plain words")
			}, o))
			for i, encoding := range []string{"gzip", "identity", "gzip"} {
				w := b.send(h, sent{key: "k", header: http.Header{"Accept-Encoding": {encoding}}})
				b.is(w, 201, "")
				body := io.Reader(w.Body)
				if got := w.Header().Get("Content-Encoding"); (got == "gzip") != (encoding == "gzip") {
					t.Fatalf("%d: a client that takes %s gets %q", i, encoding, got)
				} else if got != "" {
					var err error
					if body, err = gzip.NewReader(body); err != nil {
						t.Fatal(err)
					}
				}
				if text, err := io.ReadAll(body); string(text) != "in plain words" {
					t.Errorf("%d: got %q, %v", i, text, err)
				}
				if got := w.Header(); got.Get("Cache-Control") != "private" || got.Get("Content-Language") != "en" || got.Get("X-Frame") != "outer" {
					t.Errorf("%d: got %v", i, got)
				}
			}
			var headers string
			if err := b.db.QueryRow(t.Context(), "select headers from holdfast.idempotency").Scan(&headers); err != nil {
				t.Fatal(err)
			}
			if strings.Contains(headers, "gzip") || strings.Contains(headers, "outer") {
				t.Errorf("stored are %s", headers)
			}
		})
	}
}
