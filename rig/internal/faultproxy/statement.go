package faultproxy

import "strings"

// commits says whether one of the statements in a text is COMMIT. It knows what may hide a semicolon: quotes, comments and
// dollar quotes.
func commits(sql string) bool {
	var words []string // of the statement, at most two
	ends := func() bool {
		is := len(words) > 0 && words[0] == "commit" && (len(words) == 1 || words[1] != "prepared")
		words = words[:0]
		return is
	}
	for len(sql) > 0 {
		n := 1
		switch c := sql[0]; {
		case c == ';':
			if ends() {
				return true
			}
		case c == '\'' || c == '"':
			n = quoted(sql, false)
			words = append(words, sql[:n])
		case c == '-' && strings.HasPrefix(sql, "--"):
			if n = strings.IndexByte(sql, '\n'); n < 0 {
				n = len(sql)
			}
		case c == '/' && strings.HasPrefix(sql, "/*"):
			n = comment(sql)
		case c == '$':
			n = dollarQuoted(sql)
			words = append(words, sql[:n])
		case isWord(c):
			for n < len(sql) && (isWord(sql[n]) || sql[n] == '$') {
				n++
			}
			word := strings.ToLower(sql[:n])
			if word == "e" && n < len(sql) && sql[n] == '\'' {
				n += quoted(sql[n:], true)
			}
			words = append(words, word)
		}
		words = words[:min(len(words), 2)]
		sql = sql[n:]
	}
	return ends()
}

func isWord(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80
}

// quoted is the length of the quote that a text begins with. A doubled quote in it is two quotes, side by side.
func quoted(sql string, backslashes bool) int {
	for i := 1; i < len(sql); i++ {
		switch {
		case backslashes && sql[i] == '\\':
			i++
		case sql[i] == sql[0]:
			return i + 1
		}
	}
	return len(sql)
}

// comment is the length of the comment that a text begins with. Comments nest.
func comment(sql string) int {
	depth := 0
	for i := 0; i+1 < len(sql); i++ {
		switch sql[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
		}
		if depth == 0 {
			return i + 1
		}
	}
	return len(sql)
}

// dollarQuoted is the length of the dollar quote that a text begins with, or of its dollar where it begins with none: $1.
func dollarQuoted(sql string) int {
	n := 1
	for n < len(sql) && isWord(sql[n]) {
		n++
	}
	if n == len(sql) || sql[n] != '$' || n > 1 && sql[1] >= '0' && sql[1] <= '9' {
		return 1
	}
	tag := sql[:n+1]
	if close := strings.Index(sql[n+1:], tag); close >= 0 {
		return n + 1 + close + len(tag)
	}
	return len(sql)
}
