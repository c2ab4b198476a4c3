// Command structure counts what makes a package hard to read top to bottom: references between its files that run back,
// methods on its main type, and how often the way of one call comes back to a file.
//
//	go run ./testkit/internal/lint/structure -type Inbox -way Inbox.Receive,receiver.receiveAlone ./inbox
//
// The reading order is the order in which the package comment names the files. The files that it names under "# Words"
// hold the names that all of the package uses; they are read first.
//
//   - A reference is a pair of files: the first uses a name that the second declares (a function, a type, a method, a
//     field, a variable or a constant of package level). Tests do not count.
//   - A reference runs back when the second file stands before the first in the reading order and is not one of the
//     words. A reference from the words to any other file runs back, too.
//   - A way is a list of functions, in the order in which an event first reaches them. Each has to be called, by its name, in
//     one that stands before it. A stay is a run of functions of one file; the words do not interrupt it.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	mainType := flag.String("type", "", "the type whose methods are counted")
	way := flag.String("way", "", "functions, separated by commas, in the order in which an event reaches them")
	suggest := flag.Bool("suggest", false, "print an order of the files in which few references run back")
	verbose := flag.Bool("v", false, "print each reference that runs back, and each stay")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: structure [flags] ./package")
		os.Exit(2)
	}
	p, err := load(flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
	if *suggest {
		p.order = p.suggested()
		fmt.Println(strings.Join(p.order, " "))
	}
	if missing := p.unnamed(); len(missing) > 0 && !*suggest {
		fmt.Println("not in the reading order:", strings.Join(missing, " "))
	}
	all, back := p.references()
	fmt.Printf("files %d, references between files %d, of them back %d\n", len(p.files), len(all), len(back))
	if *verbose {
		for _, r := range back {
			fmt.Printf("  %s → %s (%s)\n", r.from, r.to, strings.Join(r.names, ", "))
		}
	}
	if *mainType != "" {
		fmt.Printf("methods on *%s: %d\n", *mainType, p.methods(*mainType))
	}
	if *way != "" {
		stays, err := p.way(strings.Split(*way, ",")...)
		if err != nil {
			fmt.Fprintln(os.Stderr, "structure:", err)
			os.Exit(1)
		}
		file, most := mostStays(stays)
		fmt.Printf("way: %d stays, most in %s: %d\n", len(stays), file, most)
		if *verbose {
			for _, s := range stays {
				fmt.Printf("  %s: %s\n", s.file, strings.Join(s.functions, ", "))
			}
		}
	}
}

// program is a package that was read and type-checked.
type program struct {
	fset  *token.FileSet
	pkg   *types.Package
	info  *types.Info
	files []string // by name, sorted
	trees map[string]*ast.File
	order []string        // as the package comment names them
	words map[string]bool // those that are named under "# Words"
}

var fileName = regexp.MustCompile(`\b[a-z][a-z0-9_]*\.go\b`)

// load reads the package in a directory. The export data of what it imports comes from the go command.
func load(dir string) (*program, error) {
	p := &program{fset: token.NewFileSet(), trees: map[string]*ast.File{}, words: map[string]bool{}}
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", ".")
	list.Dir, list.Stderr = dir, os.Stderr
	listed, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages of %s: %w", dir, err)
	}
	exports := map[string]string{}
	for line := range bytes.Lines(listed) {
		path, file, _ := strings.Cut(strings.TrimSpace(string(line)), "\t")
		exports[path] = file
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var trees []*ast.File
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(p.fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if tree.Doc != nil {
			p.readOrder(tree.Doc.Text())
		}
		p.files, p.trees[name], trees = append(p.files, name), tree, append(trees, tree)
	}
	p.info = &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
	imports := importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	check := types.Config{Importer: imports}
	if p.pkg, err = check.Check(dir, p.fset, trees, p.info); err != nil {
		return nil, fmt.Errorf("check types: %w", err)
	}
	return p, nil
}

// readOrder takes the files that a package comment names, in its order.
func (p *program) readOrder(comment string) {
	words := false
	for line := range strings.Lines(comment) {
		if heading, ok := strings.CutPrefix(line, "# "); ok {
			words = strings.TrimSpace(heading) == "Words"
		}
		for _, name := range fileName.FindAllString(line, -1) {
			if !slices.Contains(p.order, name) {
				p.order = append(p.order, name)
				p.words[name] = words
			}
		}
	}
}

// unnamed are the files that the reading order lacks, and names of it that are no files.
func (p *program) unnamed() (names []string) {
	for _, f := range p.files {
		if !slices.Contains(p.order, f) && len(p.trees[f].Decls) > 0 {
			names = append(names, f)
		}
	}
	for _, f := range p.order {
		if !slices.Contains(p.files, f) {
			names = append(names, f+" (no such file)")
		}
	}
	return names
}

// reference says that one file uses names of another.
type reference struct {
	from, to string
	names    []string
}

// references are all of the package, and those that run back. A file that the order lacks stands at its end.
func (p *program) references() (all, back []reference) {
	for _, from := range p.files {
		used := map[string][]string{}
		ast.Inspect(p.trees[from], func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			if o := p.info.Uses[id]; p.ours(o) {
				if to := p.fileOf(o); to != from && !slices.Contains(used[to], o.Name()) {
					used[to] = append(used[to], o.Name())
				}
			}
			return true
		})
		for _, to := range p.files {
			if len(used[to]) == 0 {
				continue
			}
			r := reference{from, to, used[to]}
			all = append(all, r)
			if p.words[from] != p.words[to] && p.words[from] || !p.words[to] && p.place(to) < p.place(from) {
				back = append(back, r)
			}
		}
	}
	return all, back
}

func (p *program) place(file string) int {
	if i := slices.Index(p.order, file); i >= 0 {
		return i
	}
	return len(p.order)
}

// ours says that an object is declared by the package, outside of functions.
func (p *program) ours(o types.Object) bool {
	if o == nil || o.Pkg() != p.pkg {
		return false
	}
	switch o := o.(type) {
	case *types.Var:
		return o.IsField() || o.Parent() == p.pkg.Scope()
	case *types.Func:
		return true
	case *types.TypeName, *types.Const:
		return o.Parent() == p.pkg.Scope()
	default:
		return false
	}
}

func (p *program) fileOf(o types.Object) string {
	return filepath.Base(p.fset.Position(o.Pos()).Filename)
}

// methods is how many methods a type and its pointer have, not counting those of embedded fields.
func (p *program) methods(name string) int {
	if named, ok := p.pkg.Scope().Lookup(name).Type().(*types.Named); ok {
		return named.NumMethods()
	}
	return 0
}

// stay is a run of functions of one file on a way.
type stay struct {
	file      string
	functions []string
}

// way follows functions, named as Function or Type.Method.
func (p *program) way(names ...string) (stays []stay, err error) {
	bodies := map[string]*ast.FuncDecl{}
	for _, tree := range p.trees {
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				bodies[nameOf(f)] = f
			}
		}
	}
	called := map[string]bool{}
	for i, name := range names {
		f := bodies[name]
		if f == nil {
			return nil, errors.New("no function is called " + name)
		}
		if i > 0 && !called[f.Name.Name] {
			return nil, errors.New("no function before " + name + " calls it")
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				if o, ok := p.info.Uses[id].(*types.Func); ok {
					called[o.Name()] = true
				}
			}
			return true
		})
		file := p.fileOf(p.info.Defs[f.Name])
		if p.words[file] {
			continue
		}
		if len(stays) == 0 || stays[len(stays)-1].file != file {
			stays = append(stays, stay{file: file})
		}
		last := &stays[len(stays)-1]
		last.functions = append(last.functions, name)
	}
	return stays, nil
}

// mostStays is the file with the most stays.
func mostStays(stays []stay) (file string, most int) {
	count := map[string]int{}
	for _, s := range stays {
		if count[s.file]++; count[s.file] > most {
			file, most = s.file, count[s.file]
		}
	}
	return file, most
}

func nameOf(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if id, ok := receiver.(*ast.Ident); ok {
		return id.Name + "." + f.Name.Name
	}
	return f.Name.Name
}

// suggested is an order in which few references run back: each file is moved to its best place until none gets better.
func (p *program) suggested() []string {
	uses := map[[2]string]bool{}
	all, _ := p.references()
	for _, r := range all {
		uses[[2]string{r.from, r.to}] = true
	}
	order := slices.Clone(p.files)
	for better := true; better; {
		better = false
		for _, f := range slices.Clone(order) {
			i := slices.Index(order, f)
			rest := slices.Delete(slices.Clone(order), i, i+1)
			cost, costs := 0, make([]int, len(rest)+1) // of f before rest[0], before rest[1], …
			for _, g := range rest {
				if uses[[2]string{g, f}] {
					cost++
				}
			}
			costs[0] = cost
			for j, g := range rest {
				if uses[[2]string{f, g}] {
					cost++
				}
				if uses[[2]string{g, f}] {
					cost--
				}
				costs[j+1] = cost
			}
			if best := slices.Index(costs, slices.Min(costs)); costs[best] < costs[i] {
				order, better = slices.Insert(rest, best, f), true
			}
		}
	}
	return order
}
