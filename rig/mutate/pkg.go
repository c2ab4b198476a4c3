package main

import (
	"context"
	"encoding/json"
	"errors"
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
	"strings"
)

// pkg is a package with the types of its expressions.
type pkg struct {
	dir   string // from the top of the repository
	fset  *token.FileSet
	types *types.Package
	info  types.Info
	files map[string]*ast.File // by name
	text  map[string][]byte
}

// load reads and checks a package. What it imports is read as the go command compiled it.
func load(ctx context.Context, dir string) (*pkg, error) {
	list := exec.CommandContext(ctx, "go", "list", "-deps", "-export", "-json=ImportPath,Export,GoFiles,DepOnly", "./"+dir)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list ./%s (mutate runs at the top of the repository): %w", dir, err)
	}
	type listed struct {
		ImportPath, Export string
		GoFiles            []string
		DepOnly            bool
	}
	exports, names, path := map[string]string{}, []string(nil), ""
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var l listed
		if err := d.Decode(&l); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read what go list says of ./%s: %w", dir, err)
		}
		exports[l.ImportPath] = l.Export
		if !l.DepOnly {
			names, path = l.GoFiles, l.ImportPath
		}
	}
	p := &pkg{
		dir:   dir,
		fset:  token.NewFileSet(),
		files: map[string]*ast.File{},
		text:  map[string][]byte{},
	}
	p.info.Types = map[ast.Expr]types.TypeAndValue{}
	p.info.Uses = map[*ast.Ident]types.Object{}
	var files []*ast.File
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		f, err := parser.ParseFile(p.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files[name], p.text[name] = f, text
		files = append(files, f)
	}
	conf := types.Config{Importer: importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no compiled form of %s", path)
		}
		return os.Open(exports[path])
	})}
	if p.types, err = conf.Check(path, p.fset, files, &p.info); err != nil {
		return nil, fmt.Errorf("check ./%s: %w", dir, err)
	}
	return p, nil
}

// typeText is how a file writes a type. ok is false if it cannot, for want of an import.
func (p *pkg) typeText(name string, t types.Type) (text string, ok bool) {
	imported := map[string]string{}
	for _, spec := range p.files[name].Imports {
		path := strings.Trim(spec.Path.Value, `"`)
		imported[path] = ""
		if spec.Name != nil {
			imported[path] = spec.Name.Name
		}
	}
	ok = true
	text = types.TypeString(t, func(of *types.Package) string {
		if of == p.types {
			return ""
		}
		as, has := imported[of.Path()]
		if !has {
			ok = false
		}
		if as != "" {
			return as
		}
		return of.Name()
	})
	return text, ok && !strings.Contains(text, "untyped")
}
