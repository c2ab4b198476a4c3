package idempotency

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

// form is a form in parts with this boundary.
func formOf(t *testing.T, boundary string, fields ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	if err := w.SetBoundary(boundary); err != nil {
		t.Fatal(err)
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, "=")
		if err := w.WriteField(name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func inParts(boundary string) http.Header {
	return http.Header{"Content-Type": {"multipart/form-data; boundary=" + boundary}}
}

// R7.
func TestMultipart_AFormInPartsIsComparedByItsPartsWhateverItsBoundary(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(), b.numbered)
	b.asked(h, sent{key: "k", header: inParts("first"), body: formOf(t, "first", "amount=10", "to=a")}, 201, "1")
	b.asked(h, sent{key: "k", header: inParts("second"), body: formOf(t, "second", "amount=10", "to=a")}, 201, "1")
	for name, fields := range map[string][]string{
		"another amount": {"amount=11", "to=a"}, "another order": {"to=a", "amount=10"}, "one more": {"amount=10", "to=a", "x="}, "one less": {"amount=10"},
		"another name": {"amounts=10", "to=a"}, "one in the other": {"amount=10\r\n--first\r\nContent-Disposition: form-data; name=\"to\"\r\n\r\na"},
	} {
		if w := b.send(h, sent{key: "k", header: inParts("third"), body: formOf(t, "third", fields...)}); w.Code != 409 {
			t.Errorf("%s: got %d %s", name, w.Code, w.Body)
		}
	}
	if w := b.send(h, sent{key: "k", body: formOf(t, "first", "amount=10", "to=a"), header: http.Header{"Content-Type": {"text/plain"}}}); w.Code != 409 {
		t.Errorf("as text: got %d %s", w.Code, w.Body)
	}
}

func TestMultipart_WhichFormsAreComparedByTheirParts(t *testing.T) {
	t.Parallel()
	fields := func(n int) (fields []string) {
		for i := range n {
			fields = append(fields, fmt.Sprint("f", i, "=v"))
		}
		return fields
	}
	whole := formOf(t, "b", fields(2)...)
	for name, c := range map[string]struct {
		body, boundary string
		ok, modest     bool
	}{
		"a form":                     {whole, "b", true, true},
		"with a preamble":            {"hello\r\n" + whole, "b", true, true},
		"another boundary":           {whole, "c", false, true},
		"no boundary":                {whole, "", false, true},
		"cut":                        {whole[:len(whole)-8], "b", false, true},
		"no part":                    {"--b--\r\n", "b", false, true},
		"empty":                      {"", "b", false, true},
		"as many parts as may be":    {formOf(t, "b", fields(maxParts)...), "b", true, true},
		"more":                       {formOf(t, "b", fields(maxParts+1)...), "b", false, false},
		"a head that is not a head":  {"--b\r\nnonsense\r\n\r\nv\r\n--b--\r\n", "b", false, true},
		"text after the last of all": {whole + "more", "b", true, true},
	} {
		if _, ok, modest := parts([]byte(c.body), c.boundary); ok != c.ok || modest != c.modest {
			t.Errorf("%s: ok %t, modest %t", name, ok, modest)
		}
	}
	// The content of a part is never taken for a header, nor one part for two.
	one, _, _ := parts([]byte("--b\r\nA: x\r\nA: B\r\nA: c\r\n\r\n\r\n--b--\r\n"), "b")
	other, _, _ := parts([]byte("--b\r\nA: x\r\nB: c\r\n\r\n\r\n--b--\r\n"), "b")
	if bytes.Equal(one, other) {
		t.Error("two forms are one")
	}
}
