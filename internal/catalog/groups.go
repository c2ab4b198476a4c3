package catalog

import "strings"

// ungrouped is a definition as Postgres prints it, without groups of conditions that make no difference: "((a AND b) AND c)" is
// "(a AND b AND c)". Postgres makes the second of the first when it reads its own text, after a restore or pg_upgrade.
func ungrouped(definition string) string {
	text, _, _ := groups(definition)
	return text
}

// groups rewrites a text up to the parenthesis that closes its group, and returns what comes after that, and AND or OR if the group is a
// list of conditions that one of them connects.
func groups(text string) (rewritten, connects, rest string) {
	type part struct{ text, connects string } // a group without its parentheses, or with connects "" any other text
	var parts []part
	plain, outside := "", "" // outside are the words that are in no group and no quotes
	end := func() {
		if plain != "" {
			parts, plain = append(parts, part{text: plain}), ""
		}
	}
	for text != "" && text[0] != ')' {
		switch text[0] {
		case '\'', '"':
			n := strings.IndexByte(text[1:], text[0]) + 2
			if n < 2 {
				n = len(text)
			}
			plain, text = plain+text[:n], text[n:] // A doubled quote is the end of one text and the begin of the next.
		case '(':
			inner, by, after := groups(text[1:])
			text = strings.TrimPrefix(after, ")")
			if by == "" {
				plain += "(" + inner + ")"
				break
			}
			end()
			parts = append(parts, part{inner, by})
		default:
			plain, outside, text = plain+text[:1], outside+text[:1], text[1:]
		}
	}
	end()
	and, or := strings.Contains(outside, " AND "), strings.Contains(outside, " OR ")
	if and != or {
		connects = "OR"
		if and {
			connects = "AND"
		}
	}
	var b strings.Builder
	for i, p := range parts {
		before := i == 0 || strings.HasSuffix(parts[i-1].text, " "+connects+" ")
		after := i == len(parts)-1 || strings.HasPrefix(parts[i+1].text, " "+connects+" ")
		if p.connects == "" || p.connects == connects && before && after {
			b.WriteString(p.text)
		} else {
			b.WriteString("(" + p.text + ")")
		}
	}
	return b.String(), connects, text
}
