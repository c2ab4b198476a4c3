package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// exceptions are modules whose licence is not permissive. A test checks that no program links them.
var exceptions = map[string]exception{
	"github.com/hashicorp/errwrap":                       {"MPL-2.0", []string{"rig/bench/peers"}, "the benchmark of another library has it, which nobody installs."},
	"github.com/hashicorp/go-multierror":                 {"MPL-2.0", []string{"rig/bench/peers"}, "as errwrap."},
	"github.com/hashicorp/go-uuid":                       {"MPL-2.0", []string{"rig/bench/peers"}, "as errwrap."},
	"github.com/riverqueue/river":                        {"MPL-2.0", []string{"rig/bench/peers"}, "the benchmark measures beside it; nobody installs that."},
	"github.com/riverqueue/river/riverdriver":            {"MPL-2.0", []string{"rig/bench/peers"}, "as river."},
	"github.com/riverqueue/river/riverdriver/riverpgxv5": {"MPL-2.0", []string{"rig/bench/peers"}, "as river."},
	"github.com/riverqueue/river/rivershared":            {"MPL-2.0", []string{"rig/bench/peers"}, "as river."},
	"github.com/riverqueue/river/rivertype":              {"MPL-2.0", []string{"rig/bench/peers"}, "as river."},
	"codeberg.org/go-fonts/liberation":                   {"OFL-1.1", []string{"rig/bench"}, "the benchmark's plots are measured with these fonts, which are not in the plots; nobody installs that."},
	"github.com/ajstarks/svgo":                           {"CC-BY-4.0", []string{"rig/bench"}, "the benchmark writes its plots with it; nobody installs that. The licence asks for a notice."},
	"github.com/golang/freetype":                         {"FTL", []string{"rig/bench"}, "the benchmark's plotting library has it. One may choose the FreeType licence, which asks for a notice, in place of the GPL."},
	"github.com/apparentlymart/go-textseg/v15":           {"Unicode-DFS-2016", []string{"examples/orms"}, "as hcl. The licence is of Unicode's tables, and asks for a notice."},
	"github.com/hashicorp/hcl/v2":                        {"MPL-2.0", []string{"examples/orms"}, "ent has it, and an example has ent; nobody installs that."},
	"pgregory.net/rapid":                                 {"MPL-2.0", []string{".", "contrib/redis", "rig"}, "tests alone import it. The licence covers rapid's own files, which are not changed."},
}

// readByHand are licences whose texts licensecheck does not know.
var readByHand = map[string]byHand{
	"github.com/ajstarks/svgo":   {"CC-BY-4.0", "a5909f1344a205860edda96f4365ecd06494910b43e2d9e8123cfbe8a9ab21d9"}, // Creative Commons Attribution 4.0, and a link to it
	"github.com/golang/freetype": {"FTL", "d3ba056adc2b7909e95681deaae397fb37c97ed491a920f491214f07b62c41d0"},       // the choice between the FreeType licence and the GPL
}

const head = `# Licences of third parties

holdfast is under the [Apache License 2.0](LICENSE). Its modules require the modules below; no code of them is in this
repository. What you link is a part of them: ` + "`go version -m`" + ` lists the modules in a program of yours, and most licences ask
you to pass their text on with it. A module's licence is a file at its top, in the folder that ` + "`go list -m -f '{{.Dir}}'`" + ` names.

The list is made by ` + "`go run ./rig/licences`" + `. CI checks that it is complete, and that each licence is known and permissive:
it asks for a notice at most.

The column "for" says which of our modules require it. A module's go.mod lists what its tests import, too.

| module | licence | for |
|---|---|---|
`

// part says what a module of ours is, by its folder.
func part(dir string) string {
	switch {
	case dir == ".":
		return "the library"
	case dir == "cmd/holdfast" || strings.HasPrefix(dir, "contrib/"):
		return dir
	}
	return "tests and examples"
}

// listOf is the text of the list. A module whose versions have several licences has all of them.
func listOf(all []*requirement) (string, error) {
	type row struct{ licences, parts []string }
	rows := map[string]*row{}
	var problems []error
	for _, r := range all {
		texts, err := licencesIn(r.dir)
		var names []string
		if err == nil {
			names, err = identify(r.Path, texts, readByHand)
		}
		if err == nil {
			err = allowed(r.Path, names, r.by, exceptions)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s@%s: %w", r.Path, r.Version.Version, err))
			continue
		}
		if rows[r.Path] == nil {
			rows[r.Path] = new(row)
		}
		rows[r.Path].licences = append(rows[r.Path].licences, names...)
		for _, dir := range r.by {
			rows[r.Path].parts = append(rows[r.Path].parts, part(dir))
		}
	}
	if len(problems) > 0 {
		return "", errors.Join(problems...)
	}
	var list strings.Builder
	list.WriteString(head)
	for _, path := range slices.Sorted(maps.Keys(rows)) {
		r := rows[path]
		slices.Sort(r.licences)
		slices.Sort(r.parts)
		fmt.Fprintf(&list, "| %s | %s | %s |\n", path, strings.Join(slices.Compact(r.licences), ", "), strings.Join(slices.Compact(r.parts), ", "))
	}
	if len(exceptions) > 0 {
		list.WriteString("\nExceptions, which no program of yours links:\n\n")
		for _, path := range slices.Sorted(maps.Keys(exceptions)) {
			fmt.Fprintf(&list, "- %s (%s): %s\n", path, exceptions[path].licence, exceptions[path].reason)
		}
	}
	return list.String(), nil
}
