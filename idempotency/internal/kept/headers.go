package kept

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// HeadersText encodes the headers of an answer or a request as JSON. Each byte of a value becomes the character of that number, so
// bytes that are not UTF-8 survive. Control characters, which no answer may have, are left out.
func HeadersText(h http.Header) (string, error) {
	lines := make(map[string][]string, len(h))
	for name, values := range h {
		lines[name] = []string{}
		for _, value := range values {
			characters := make([]rune, 0, len(value))
			for _, c := range []byte(value) {
				if c >= ' ' && c != 0x7f || c == '\t' {
					characters = append(characters, rune(c))
				}
			}
			lines[name] = append(lines[name], string(characters))
		}
	}
	text, err := json.Marshal(lines)
	return string(text), err
}

// HeadersOf is the reverse of HeadersText. It refuses characters that are no bytes.
func HeadersOf(text string) (http.Header, error) {
	h := http.Header{}
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return nil, err
	}
	for _, values := range h {
		for i, value := range values {
			b := make([]byte, 0, len(value))
			for _, c := range value {
				if c > 0xff {
					return nil, fmt.Errorf("headers have the character %q", c)
				}
				b = append(b, byte(c))
			}
			values[i] = string(b)
		}
	}
	return h, nil
}
