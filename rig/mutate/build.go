package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// switchText is added to a package whose mutants share a binary. One is on, or none is. When none is, the binary notes which
// places its tests reach.
const switchText = `package %s

import (
	"os"
	"strconv"
	"sync/atomic"
)

var (
	mutantOn, _   = strconv.Atoi(os.Getenv("HOLDFAST_MUTANT"))
	mutantReached [%d]atomic.Bool
)

func mutantIsOn(id int) bool {
	if mutantOn == 0 && !mutantReached[id].Swap(true) {
		if path := os.Getenv("HOLDFAST_MUTANTS_REACHED"); path != "" {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
			if err != nil {
				panic(err)
			}
			f.WriteString(strconv.Itoa(id) + "\n")
			f.Close()
		}
	}
	return id == mutantOn
}
`

// buildAll builds one test binary with all the mutants that can share one. Those that the compiler refuses there get a binary of
// their own later.
func (p *pkg) buildAll(ctx context.Context, scratch string, all []*mutant) (binary string, err error) {
	for {
		over := map[string]string{filepath.Join(p.dir, "mutant_switch.go"): fmt.Sprintf(switchText, p.types.Name(), len(all)+1)}
		for name := range p.files {
			var of []*mutant
			for _, m := range all {
				if m.file == name && m.before != nil {
					of = append(of, m)
				}
			}
			if len(of) > 0 {
				over[filepath.Join(p.dir, name)] = string(together(p.text[name], of))
			}
		}
		binary, said, err := p.build(ctx, scratch, "all", over)
		if err == nil {
			return binary, nil
		}
		refused := p.refused(over, said, all)
		if len(refused) == 0 {
			return "", fmt.Errorf("build the tests of %s with its mutants: %w\n%s", p.dir, err, said)
		}
		for _, m := range refused {
			m.before, m.after = nil, nil
		}
	}
}

// together is a file with all its mutants, each behind its switch.
func together(text []byte, all []*mutant) []byte {
	slices.SortStableFunc(all, func(a, b *mutant) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	var render func(from, to int, inside []*mutant) string
	render = func(from, to int, inside []*mutant) string {
		var b strings.Builder
		for len(inside) > 0 {
			m := inside[0]
			within := 1
			for within < len(inside) && inside[within].from < m.to {
				within++
			}
			b.Write(text[from:m.from])
			b.WriteString(m.before(m.id))
			b.WriteString(render(m.from, m.to, inside[1:within]))
			b.WriteString(m.after(m.id))
			from, inside = m.to, inside[within:]
		}
		b.Write(text[from:to])
		return b.String()
	}
	return []byte(render(0, len(text), all))
}

var complaint = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):(\d+): `)
var switched = regexp.MustCompile(`mutantIsOn\((\d+)\)`)

// refused finds the mutants that the compiler complains about: those whose switches stand nearest before its complaints.
func (p *pkg) refused(over map[string]string, said string, all []*mutant) []*mutant {
	var refused []*mutant
	for _, c := range complaint.FindAllStringSubmatch(said, -1) {
		text := over[filepath.Join(p.dir, filepath.Base(c[1]))]
		line, _ := strconv.Atoi(c[2])
		column, _ := strconv.Atoi(c[3])
		lines := strings.SplitAfter(text, "\n")
		if text == "" || line > len(lines) {
			continue
		}
		before := strings.Join(lines[:line-1], "") + lines[line-1][:min(column+40, len(lines[line-1]))]
		if ids := switched.FindAllStringSubmatch(before, -1); len(ids) > 0 {
			id, _ := strconv.Atoi(ids[len(ids)-1][1])
			for _, m := range all {
				if m.id == id && m.before != nil {
					refused = append(refused, m)
				}
			}
		}
	}
	return refused
}

// buildAlone builds the tests with one mutant.
func (p *pkg) buildAlone(ctx context.Context, scratch string, m *mutant) (binary string, err error) {
	text := p.text[m.file]
	binary, _, err = p.build(ctx, scratch, "alone"+strconv.Itoa(m.id),
		map[string]string{filepath.Join(p.dir, m.file): string(text[:m.from]) + m.is + string(text[m.to:])})
	return binary, err
}

// build compiles the package's tests with other texts of some files.
func (p *pkg) build(ctx context.Context, scratch, name string, over map[string]string) (binary, said string, err error) {
	replace := map[string]string{}
	for path, text := range over {
		at := filepath.Join(scratch, name+"-"+filepath.Base(path))
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			return "", "", err
		}
		absolute, err := filepath.Abs(path)
		if err != nil {
			return "", "", err
		}
		replace[absolute] = at
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", "", err
	}
	at := filepath.Join(scratch, name+".json")
	if err := os.WriteFile(at, overlay, 0o600); err != nil {
		return "", "", err
	}
	binary = filepath.Join(scratch, name+".test")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", at, "-o", binary, "./"+p.dir).CombinedOutput()
	return binary, string(out), err
}
