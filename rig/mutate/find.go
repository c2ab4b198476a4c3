package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"strconv"
	"strings"
)

// mutant is one change of one place.
type mutant struct {
	name string // "relay/cursor.go after: negate: full", with #2 behind it for the second of that text in the function
	id   int    // in its binary

	file, function, kind string
	line                 int
	from, to             int // the span of the text, in bytes
	was, is              string
	// before and after stand around the span in the binary that has all mutants of the package. They are empty if the mutant
	// needs a binary of its own.
	before, after func(id int) string
	sql           *sqlText // of a mutant in a statement: it has neither span nor switch

	state  state
	by     string // the test that killed it
	reason string // why it is equivalent
}

// finder walks the functions of a file.
type finder struct {
	p        *pkg
	file     string
	function string
	found    []*mutant
	seen     map[string]int
}

// find lists the mutants of a file, in its order. Numbers that have names at the top are settings: tests read them by their names.
func (p *pkg) find(file string) ([]*mutant, error) {
	f := p.files[file]
	if f == nil {
		return nil, fmt.Errorf("no file %s/%s: correct targets.go", p.dir, file)
	}
	w := &finder{p: p, file: file, seen: map[string]int{}}
	for _, d := range f.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
			w.function = d.Name.Name
			w.walk(d.Body)
		}
	}
	return w.found, nil
}

// notMutated are statements whose absence no promise forbids: log lines, points where tests end a process, and what frees
// something that is freed anyway, only later.
var notMutated = regexp.MustCompile(`^[\w.]+\.Logger\.|^failpoint\.Hit|^(defer )?(cancel|stop|end)\(\)$|^(defer )?(t|timer|heartbeat|rest)\.Stop\(\)$|^(defer )?rows\.Close\(\)$`)

// walk finds the mutants of a function's body. Those of function literals in it are among them.
func (fi *finder) walk(body *ast.BlockStmt) {
	var parents []ast.Node
	ast.Inspect(body, func(n ast.Node) bool {
		if n == nil {
			parents = parents[:len(parents)-1]
			return true
		}
		var parent ast.Node
		if len(parents) > 0 {
			parent = parents[len(parents)-1]
		}
		if s, ok := n.(ast.Stmt); ok && notMutated.MatchString(fi.text(s)) && !isBlock(n) {
			return false
		}
		if s, ok := n.(*ast.IfStmt); ok && s.Init == nil && s.Else == nil && fi.onlyNotMutated(s.Body) {
			return false
		}
		parents = append(parents, n)
		switch n := n.(type) {
		case *ast.IfStmt:
			fi.negate(n.Cond)
			if e, ok := n.Else.(*ast.BlockStmt); ok && len(e.List) > 0 {
				fi.add("remove else", e, "{}", func(id int) string { return fmt.Sprintf("{ if !mutantIsOn(%d) ", id) }, func(int) string { return " }" })
			}
		case *ast.ForStmt:
			if n.Cond != nil {
				fi.negate(n.Cond)
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				if fi.isBool(e) {
					fi.negate(e)
				}
			}
		case *ast.BinaryExpr:
			fi.binary(n, parent)
		case *ast.BasicLit:
			if n.Kind == token.INT && !constantNeeded(parents) && !fi.besideError(parent) {
				if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
					fi.replace("constant", n, strconv.FormatInt(v+1, 10))
				}
			}
		case *ast.Ident:
			if (n.Name == "true" || n.Name == "false") && !constantNeeded(parents) && !fi.besideError(parent) && fi.p.info.Uses[n] == types.Universe.Lookup(n.Name) {
				fi.replace("constant", n, strconv.FormatBool(n.Name == "false"))
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "min" || f.Name == "max") && len(n.Args) == 2 {
				other := map[string]string{"min": "max", "max": "min"}[f.Name]
				fi.replace("swap", n, other+strings.TrimPrefix(fi.text(n), f.Name))
			}
		case *ast.ReturnStmt:
			fi.returned(n)
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.SendStmt, *ast.GoStmt, *ast.DeferStmt:
			fi.drop(n.(ast.Stmt), parent)
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE && fi.text(n.Lhs[0]) != "_" {
				fi.drop(n, parent)
			}
		case *ast.BranchStmt:
			if n.Tok == token.BREAK || n.Tok == token.CONTINUE {
				fi.drop(n, parent)
			}
		}
		return true
	})
}

func (fi *finder) negate(cond ast.Expr) {
	fi.add("negate", cond, "!("+fi.text(cond)+")",
		func(id int) string { return fmt.Sprintf("(mutantIsOn(%d) != (", id) }, func(int) string { return "))" })
}

var swaps = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
}

// binary swaps an operator, or leaves an operand of && and || out.
func (fi *finder) binary(n *ast.BinaryExpr, parent ast.Node) {
	left, right := fi.text(n.X), fi.text(n.Y)
	switch n.Op {
	case token.LAND, token.LOR:
		fi.replace("drop operand", n, left)
		fi.replace("drop operand", n, right)
		return
	case token.EQL, token.NEQ:
		if s, ok := parent.(*ast.IfStmt); ok && s.Cond == n {
			return // negating the condition is the same
		}
		if s, ok := parent.(*ast.CaseClause); ok && s.List != nil {
			return
		}
	case token.ADD, token.SUB, token.MUL, token.QUO:
		b, ok := fi.p.info.Types[n].Type.Underlying().(*types.Basic)
		if !ok || b.Info()&types.IsNumeric == 0 || fi.p.info.Types[n].Value != nil {
			return
		}
	}
	if to, ok := swaps[n.Op]; ok {
		fi.replace("swap", n, left+" "+to.String()+" "+right)
	}
}

// returned changes results: an error becomes nil, a truth its opposite, a number the next one.
func (fi *finder) returned(n *ast.ReturnStmt) {
	for i, e := range n.Results {
		t := fi.p.info.Types[e]
		if t.IsNil() || t.Type == nil {
			continue
		}
		to := ""
		switch u := t.Type.Underlying().(type) {
		case *types.Interface:
			if types.Identical(t.Type, types.Universe.Lookup("error").Type()) {
				to = "nil"
			}
		case *types.Basic:
			_, literal := e.(*ast.BasicLit)
			_, comparison := e.(*ast.BinaryExpr)
			name, _ := e.(*ast.Ident)
			switch {
			case literal || comparison || name != nil && (name.Name == "true" || name.Name == "false"):
			case u.Info()&types.IsBoolean != 0:
				to = "!(" + fi.text(e) + ")"
			case u.Info()&types.IsInteger != 0 && t.Value == nil:
				to = fi.text(e) + " + 1"
			}
		case *types.Pointer:
			if strings.HasSuffix(t.Type.String(), "Error") {
				to = "nil"
			}
		}
		if to == "" {
			continue
		}
		var is []string
		for j, other := range n.Results {
			if j == i {
				is = append(is, to)
			} else {
				is = append(is, fi.text(other))
			}
		}
		changed := "return " + strings.Join(is, ", ")
		fi.add("return", n, changed, func(id int) string { return fmt.Sprintf("if mutantIsOn(%d) { %s }; ", id, changed) }, func(int) string { return "" })
	}
}

// drop leaves a statement of a list out.
func (fi *finder) drop(s ast.Stmt, parent ast.Node) {
	switch p := parent.(type) {
	case *ast.BlockStmt, *ast.CaseClause:
	case *ast.CommClause:
		if p.Comm == s {
			return
		}
	default:
		return
	}
	fi.add("drop", s, "", func(id int) string { return fmt.Sprintf("if !mutantIsOn(%d) { ", id) }, func(int) string { return " }" })
}

// replace changes an expression.
func (fi *finder) replace(kind string, e ast.Expr, is string) {
	t := fi.p.info.Types[e].Type
	if t == nil {
		return
	}
	if b, ok := t.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
		t = types.Default(t)
	}
	text, ok := fi.p.typeText(fi.file, t)
	if !ok {
		fi.add(kind, e, is, nil, nil)
		return
	}
	fi.add(kind, e, is, func(id int) string {
		return fmt.Sprintf("(func() %s { if mutantIsOn(%d) { return %s }; return ", text, id, is)
	},
		func(int) string { return " }())" })
}

func (fi *finder) add(kind string, at ast.Node, is string, before, after func(int) string) {
	m := &mutant{
		file:     fi.file,
		function: fi.function,
		kind:     kind,
		was:      fi.text(at),
		is:       is,
		before:   before,
		after:    after,
	}
	m.from, m.to = fi.p.fset.Position(at.Pos()).Offset, fi.p.fset.Position(at.End()).Offset
	m.line = fi.p.fset.Position(at.Pos()).Line
	change := short(m.was)
	if kind == "swap" || kind == "return" || kind == "constant" || kind == "drop operand" {
		change += " -> " + short(is)
	}
	m.name = fmt.Sprintf("%s/%s %s: %s: %s", fi.p.dir, fi.file, fi.function, kind, change)
	fi.seen[m.name]++
	if n := fi.seen[m.name]; n > 1 {
		m.name += fmt.Sprintf(" #%d", n)
	}
	fi.found = append(fi.found, m)
}

var space = regexp.MustCompile(`\s+`)

// short is a text on one line, and not a long one.
func short(text string) string {
	text = space.ReplaceAllString(text, " ")
	if len(text) > 90 {
		return text[:60] + " … " + text[len(text)-27:]
	}
	return text
}

func (fi *finder) text(n ast.Node) string {
	return string(fi.p.text[fi.file][fi.p.fset.Position(n.Pos()).Offset:fi.p.fset.Position(n.End()).Offset])
}

func (fi *finder) isBool(e ast.Expr) bool {
	b, ok := fi.p.info.Types[e].Type.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0 && fi.p.info.Types[e].Value == nil
}

// onlyNotMutated says that nothing depends on whether a block is entered.
func (fi *finder) onlyNotMutated(b *ast.BlockStmt) bool {
	for _, s := range b.List {
		if isBlock(s) || !notMutated.MatchString(fi.text(s)) {
			return false
		}
	}
	return true
}

func isBlock(n ast.Node) bool {
	switch n.(type) {
	case *ast.ExprStmt, *ast.DeferStmt:
		return false
	}
	return true
}

// besideError reports that a node returns an error. Nobody looks at the results beside it.
func (fi *finder) besideError(n ast.Node) bool {
	r, ok := n.(*ast.ReturnStmt)
	if !ok || len(r.Results) < 2 {
		return false
	}
	last := fi.p.info.Types[r.Results[len(r.Results)-1]]
	return !last.IsNil() && last.Type != nil && types.Implements(last.Type, types.Universe.Lookup("error").Type().Underlying().(*types.Interface))
}

// constantNeeded says that the language wants a constant here. path leads to the expression.
func constantNeeded(path []ast.Node) bool {
	for i := len(path) - 1; i >= 0; i-- {
		switch n := path[i].(type) {
		case *ast.ArrayType, *ast.GenDecl:
			return true
		case *ast.KeyValueExpr:
			if i+1 < len(path) && path[i+1] == n.Key {
				return true
			}
		case ast.Stmt:
			return false
		}
	}
	return false
}
