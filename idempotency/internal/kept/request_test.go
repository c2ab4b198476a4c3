package kept

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzAKeptRequestComesBackAsItWas keeps requests as they come and restores them.
func FuzzAKeptRequestComesBackAsItWas(f *testing.F) {
	f.Add("/a/b?c=d", "text/plain", "id", "value", []byte("body"))
	f.Add("/%zz", "\xff", "", "", []byte{0})
	f.Add("//host/path", "a\tb", "id", "a/b", []byte(nil))
	f.Add("/é?\xff", "x", "id", "\xc3", []byte("\xff"))
	f.Fuzz(func(t *testing.T, target, header, name, value string, body []byte) {
		parsed, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\nHost: h\r\n\r\n")))
		if err != nil || strings.ContainsRune(target+header+name+value, 0) || strings.ContainsAny(header, "\x00\x01\x02\x03\x04\x05\x06\x07\x08\n\x0b\x0c\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f") || len(header) > maxHeader {
			return // net/http lets no such request through.
		}
		parsed.Header.Set("Content-Type", header)
		parsed.Header.Set("Authorization", "secret")
		if name != "" && !strings.ContainsAny(name, "{}") && !strings.HasSuffix(name, "...") && name != "$" {
			parsed.Pattern = "POST /{" + name + "}"
			parsed.SetPathValue(name, value)
		}
		k := Of(parsed, "route", "principal", body, nil)
		c := k.Columns()
		back := Request{Method: c[2].(string), Host: c[3].(string), URL: c[4].(string), Pattern: c[5].(string), Body: c[8].([]byte)}
		if err := back.Read(c[6].(string), c[7].(string)); err != nil {
			t.Fatal(err)
		}
		r, err := back.Restore(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(r.Body)
		if r.Method != "POST" || r.URL.RequestURI() != parsed.URL.RequestURI() || r.Host != parsed.Host || fmt.Sprint(r.Header["Content-Type"]) != fmt.Sprint(parsed.Header["Content-Type"]) || !bytes.Equal(got, body) {
			t.Fatalf("%q came back as %q, %q, %q", target, r.URL, r.Header, got)
		}
		if r.Pattern != parsed.Pattern {
			t.Fatalf("pattern %q came back as %q", parsed.Pattern, r.Pattern)
		}
		if parsed.Pattern != "" && r.PathValue(name) != value {
			t.Fatalf("path value %q was %q, is %q", name, value, r.PathValue(name))
		}
		if r.Header.Get("Authorization") != "" {
			t.Fatal("credentials are kept")
		}
	})
}
