package idempotency

import (
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// R7.
func TestReadBefore_ABodyOfUnknownLengthThatWasReadBeforeIsNotTakenForEmpty(t *testing.T) {
	b := setup(t)
	inner := b.service(b.guard(), b.charge, Route{Operation: "charge", Optional: true})
	own := b.service(b.guard(), b.charge, Route{Operation: "own", Fingerprint: func(*http.Request, []byte) ([]byte, error) { return []byte("own"), nil }})
	for name, c := range map[string]struct {
		read      int64 // in front, of each body
		chunks    bool
		next      http.Handler
		first     int // statuses
		repeat    int
		otherwise int
	}{
		"all-of-its-chunks":        {1 << 20, true, inner, 500, 500, 500},
		"a-part-of-its-length":     {5, false, inner, 500, 500, 500},
		"nothing-of-its-chunks":    {0, true, inner, 201, 201, 409},
		"all-but-what-counts":      {1 << 20, true, own, 201, 201, 201},
		"a-part-but-what-counts":   {5, false, own, 201, 201, 201},
		"nothing-of-a-whole-body":  {0, false, inner, 201, 201, 409},
		"nothing-but-what-is-said": {0, false, own, 201, 201, 201},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.CopyN(io.Discard, r.Body, c.read); err != nil && err != io.EOF {
				t.Error(err)
			}
			c.next.ServeHTTP(w, r)
		})
		for i, want := range []int{c.first, c.repeat, c.otherwise} {
			text := `{"amount": 10}`
			if i == 2 {
				text = `{"amount": 9999}`
			}
			body := io.Reader(strings.NewReader(text))
			if c.chunks {
				body = io.MultiReader(body)
			}
			if code, answer := b.overTheWire(h, name, "application/json", body); code != want || code == 500 && !strings.Contains(answer, codeHandlerFault) {
				t.Errorf("%s: request %d got %d %s, want %d", name, i+1, code, answer, want)
			}
		}
	}
	if n := b.runs.Load(); n != 5 {
		t.Errorf("%d ran", n)
	}
}

// R7.
func TestReadBefore_WhatIsKnownOfABodyThatWasReadInFront(t *testing.T) {
	t.Parallel()
	gzipped := http.Header{"Content-Encoding": {"gzip"}}
	for name, c := range map[string]struct {
		r    http.Request
		body string
		want string
		gone bool
	}{
		"nobody read it":                            {http.Request{ContentLength: 2}, "{}", "{}", false},
		"nobody read its chunks":                    {http.Request{ContentLength: -1}, "{}", "{}", false},
		"there is none":                             {http.Request{}, "", "", false},
		"all of it was read":                        {http.Request{ContentLength: 2}, "", "", true},
		"a part of it was read":                     {http.Request{ContentLength: 4}, "{}}", "{}}", true},
		"its chunks were read, or there were none":  {http.Request{ContentLength: -1}, "", "", true},
		"its form was parsed":                       {http.Request{ContentLength: 3, PostForm: url.Values{"a": {"1"}}}, "", "a=1", false},
		"the form in its chunks was parsed":         {http.Request{ContentLength: -1, PostForm: url.Values{"a": {"1"}}}, "", "a=1", false},
		"its parts were parsed":                     {http.Request{ContentLength: -1, MultipartForm: &multipart.Form{}}, "", "", true},
		"somebody unpacked it, and it became less":  {http.Request{ContentLength: 22, Header: gzipped}, "{}", "{}", false},
		"somebody unpacked it, and it became more":  {http.Request{ContentLength: 22, Header: gzipped}, strings.Repeat("{}", 20), strings.Repeat("{}", 20), false},
		"somebody packed it, and all of it is gone": {http.Request{ContentLength: 22, Header: gzipped}, "", "", true},
	} {
		body, err := readBefore(&c.r, []byte(c.body))
		if string(body) != c.want || (err != nil) != c.gone {
			t.Errorf("%s: got %q, %v", name, body, err)
		}
	}
}

func TestReadBefore_ARequestWithoutAKeyIsNobodysRepeatWhoeverReadItsBody(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.charge, Route{Optional: true})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Account", "a")
	r.ContentLength = -1
	w := b.through(h, r)
	b.is(w, 201, "")
}
