package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"os"
	"regexp"
	"slices"
	"strings"
)

// This file finds mutants in the conditions of statements: of constants that begin with "-- " and a name, and of the functions and views
// of schema.sql. A statement is text, so no binary has to be built for its mutants: see sqlSwitch.

// sqlText is a statement as it is passed to sqlschema.In, or a part of that, and what stands in its place.
type sqlText struct{ Was, Is string }

var (
	statementName = regexp.MustCompile(`^-- ([a-z_]+\.[a-z_]+)\n`)
	schemaObject  = regexp.MustCompile(`(?m)^create (?:function|view) holdfast\.(\w+)`)
)

// findSQL lists the mutants of a file's statements, in its order.
func (p *pkg) findSQL(file string) ([]*mutant, error) {
	if strings.HasSuffix(file, ".sql") {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		return schemaMutants(file, string(text)), nil
	}
	f := p.files[file]
	if f == nil {
		return nil, fmt.Errorf("no file %s/%s: correct targets.go", p.dir, file)
	}
	var found []*mutant
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				c, ok := p.types.Scope().Lookup(name.Name).(*types.Const)
				if !ok || c.Val().Kind() != constant.String {
					continue
				}
				if text := constant.StringVal(c.Val()); statementName.MatchString(text) {
					found = append(found, mutantsOf(p.dir+"/"+file, name.Name, text, p.fset.Position(name.Pos()).Line)...)
				}
			}
		}
	}
	return found, nil
}

// schemaMutants are those of a script's functions and views.
func schemaMutants(file, text string) []*mutant {
	var found []*mutant
	for _, at := range schemaObject.FindAllStringSubmatchIndex(text, -1) {
		object, end := text[at[0]:], ";"
		if strings.HasPrefix(object, "create function") {
			end = "$$;"
		}
		if n := strings.Index(object, end); n >= 0 {
			object = object[:n+len(end)]
		}
		found = append(found, mutantsOf(file, text[at[2]:at[3]], object, 1+strings.Count(text[:at[0]], "\n"))...)
	}
	return found
}

// mutantsOf are those of one statement that begins at a line of a file.
func mutantsOf(path, name, text string, line int) []*mutant {
	var found []*mutant
	seen := map[string]int{}
	for _, c := range conditions(text) {
		was, is := text[c.from:c.to], c.is
		m := &mutant{
			function: name,
			kind:     c.kind,
			line:     line + strings.Count(text[:c.from], "\n"),
			was:      was,
			is:       is,
			sql:      &sqlText{text, text[:c.from] + c.is + text[c.to:]},
		}
		m.file = path[strings.LastIndex(path, "/")+1:]
		m.name = fmt.Sprintf("%s %s: %s: %s", path, name, c.kind, short(strings.TrimSpace(was)))
		if c.kind == "swap" {
			m.name = fmt.Sprintf("%s %s: swap: %s -> %s", path, name, short(c.around), is)
		}
		seen[m.name]++
		if n := seen[m.name]; n > 1 {
			m.name += fmt.Sprintf(" #%d", n)
		}
		found = append(found, m)
	}
	return found
}

// change is one change of a statement.
type change struct {
	kind     string // "drop", of an operand of AND or OR, or "swap", of a comparison
	from, to int
	is       string
	around   string // of a comparison: the operand that it stands in
}

// word is a token of SQL: a word, an operator or a bracket. Comments, texts and names in quotes are left out.
type word struct {
	text     string
	from, to int
}

var sqlWord = regexp.MustCompile(`(?s)--[^\n]*|'(?:[^']|'')*'|"[^"]*"|\$[a-z]+\$|\$\$|\$\d+|[\pL_][\pL\d_]*|\d[\d.]*|[-+*/<>=~!@#%^&|?:]+|.`)

func words(sql string) []word {
	var all []word
	for _, at := range sqlWord.FindAllStringIndex(sql, -1) {
		text := sql[at[0]:at[1]]
		switch {
		case strings.TrimSpace(text) == "", strings.HasPrefix(text, "--"), strings.HasPrefix(text, "$q$"), text == "$$":
		default:
			all = append(all, word{strings.ToLower(text), at[0], at[1]})
		}
	}
	return all
}

// What begins a condition, and what ends one.
var (
	begins = []string{"where", "on", "having", "when", "if", "elsif"}
	ends   = []string{"order", "group", "limit", "returning", "for", "union", "then", "else", "end", "loop", "set", "from", "select", "values", "insert", "update", "delete", "window", "using",
		"join", "left", "cross", "inner", "offset", "where", "on", "having", "when", "return", "do", ";", ","}
	swapsSQL = map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "=": ">="}
)

// region is a condition at one level of brackets: operands of OR, each a list of operands of AND.
type region struct {
	open    bool
	by      string   // what began it
	from    int      // of the operand at hand
	ands    [][2]int // spans of the operands of the AND at hand
	ors     [][][2]int
	between bool
	swaps   []change // in the operand at hand
}

// conditions lists what can be changed in the conditions of a statement.
func conditions(sql string) []change {
	var found []change
	levels := []*region{{}}
	all := words(sql)
	operand := func(r *region, to int) {
		r.ands = append(r.ands, [2]int{r.from, to})
		for _, c := range r.swaps {
			c.around = strings.TrimSpace(sql[r.from:to])
			found = append(found, c)
		}
		r.swaps = nil
	}
	finish := func(r *region, to int) {
		if !r.open {
			return
		}
		operand(r, to)
		r.ors = append(r.ors, r.ands)
		found = append(found, dropped(sql, r)...)
		*r = region{}
	}
	for i, w := range all {
		r := levels[len(levels)-1]
		before, after := "", ""
		if i > 0 {
			before = all[i-1].text
		}
		if i+1 < len(all) {
			after = all[i+1].text
		}
		last := 0
		if i > 0 {
			last = all[i-1].to
		}
		switch {
		case w.text == "(":
			inside := &region{}
			if r.open && after != "select" && slices.Contains([]string{"and", "or", "not", "(", "where", "on", "having", "when", "if"}, before) {
				inside = &region{open: true, by: "(", from: w.to}
			}
			levels = append(levels, inside)
		case w.text == ")":
			finish(r, last)
			if len(levels) > 1 {
				levels = levels[:len(levels)-1]
			}
		case r.open && w.text == "between":
			r.between = true
		case r.open && w.text == "and" && r.between:
			r.between = false
		case r.open && w.text == "and":
			operand(r, last)
			r.from = w.to
		case r.open && w.text == "or":
			operand(r, last)
			r.ors, r.ands, r.from = append(r.ors, r.ands), nil, w.to
		default:
			if to, ok := swapsSQL[w.text]; ok && r.open {
				r.swaps = append(r.swaps, change{kind: "swap", from: w.from, to: w.to, is: to})
			}
			if r.open && slices.Contains(ends, w.text) {
				finish(r, last)
			}
			if slices.Contains(begins, w.text) && !(w.text == "on" && after == "conflict") && !(w.text == "if" && (after == "exists" || after == "not")) {
				*r = region{open: true, by: w.text, from: w.to}
			}
		}
	}
	for _, r := range levels {
		finish(r, len(sql))
	}
	slices.SortStableFunc(found, func(a, b change) int { return a.from - b.from })
	return found
}

// dropped leaves each operand of a condition out. Of a condition with one operand nothing is left: it is true.
func dropped(sql string, r *region) []change {
	var found []change
	for i, ands := range r.ors {
		if len(r.ors) > 1 {
			from, to := ands[0][0], ands[len(ands)-1][1]
			if i == 0 {
				found = append(found, change{kind: "drop", from: from, to: r.ors[1][0][0], is: " "})
			} else {
				found = append(found, change{
					kind: "drop",
					from: r.ors[i-1][len(r.ors[i-1])-1][1],
					to:   to,
				})
			}
		}
		for j, a := range ands {
			switch {
			case j > 0:
				found = append(found, change{kind: "drop", from: ands[j-1][1], to: a[1]})
			case len(ands) > 1:
				found = append(found, change{kind: "drop", from: a[0], to: ands[1][0], is: " "})
			case len(r.ors) == 1 && (r.by == "where" || r.by == "on" || r.by == "having") && strings.TrimSpace(sql[a[0]:a[1]]) != "true":
				found = append(found, change{kind: "drop", from: a[0], to: a[1], is: " true"})
			}
		}
	}
	return found
}
