package main

import (
	"crypto/sha256"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/module"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

const root = "../.."

func TestLicences_TheListOfLicencesIsComplete(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	all, err := requirements(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Errorf("only %d requirements were found: the search has gone blind", len(all))
	}
	if err := locate(t.Context(), root, all); err != nil {
		skip.Without(t, "the modules of others", "go online once", err)
	}
	list, err := listOf(all)
	if err == nil {
		err = upToDate(root, list)
	}
	if err != nil {
		t.Error(err)
	}
	if err := upToDate(root, list+"| example.com/m | MIT | the library |\n"); err == nil {
		t.Error("a list without a module is taken for complete")
	}
}

const isc = `ISC License

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted,
provided that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR
CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF
CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.
`

const gpl = `This program is free software: you can redistribute it and/or modify it under the terms of the GNU General Public License
as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.

This program is distributed in the hope that it will be useful, but WITHOUT ANY WARRANTY; without even the implied warranty
of MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE. See the GNU General Public License for more details.
`

func TestLicences_ALicenceThatIsUnknownOrNotPermissiveIsRefused(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	mpl := map[string]exception{"example.com/m": {licence: "MPL-2.0", by: []string{"rig/bench"}}}
	for name, c := range map[string]struct {
		texts   []string
		by      []string
		allowed map[string]exception
		want    string // of the error
	}{
		"a permissive one":                   {texts: []string{isc}},
		"none":                               {want: "no licence file"},
		"a text of nobody":                   {texts: []string{"All rights reserved by the author of this program."}, want: "not recognised"},
		"a permissive one and much else":     {texts: []string{isc + strings.Repeat("You must also send the author a postcard each year. ", 20)}, want: "not recognised"},
		"a copyleft":                         {texts: []string{gpl}, want: "GPL-3.0-or-later is not permissive"},
		"a copyleft beside a permissive one": {texts: []string{isc, gpl}, want: "GPL-3.0-or-later is not permissive"},
		"an exception for another licence":   {texts: []string{gpl}, by: []string{"rig/bench"}, allowed: mpl, want: "not permissive"},
	} {
		var texts [][]byte
		for _, text := range c.texts {
			texts = append(texts, []byte(text))
		}
		names, err := classify(texts)
		if err == nil {
			err = allowed("example.com/m", names, c.by, c.allowed)
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	if err := allowed("example.com/m", []string{"MPL-2.0"}, []string{"rig/bench"}, mpl); err != nil {
		t.Errorf("an exception: %v", err)
	}
	if err := allowed("example.com/m", []string{"MPL-2.0"}, []string{".", "rig/bench"}, mpl); err == nil {
		t.Error("an exception for the benchmark lets the library have the module")
	}
}

func TestLicences_ALicenceReadByHandIsReadAgainIfItChanges(t *testing.T) {
	text := []byte("Use it, and thank the author by name.\n")
	read := map[string]byHand{"example.com/m": {licence: "Thanks", sum: fmt.Sprintf("%x", sha256.Sum256(text))}}
	if names, err := identify("example.com/m", [][]byte{text}, read); err != nil || !slices.Equal(names, []string{"Thanks"}) {
		t.Errorf("the text that was read: %q, %v", names, err)
	}
	if _, err := identify("example.com/m", [][]byte{text, []byte("Pay the author.\n")}, read); err == nil || !strings.Contains(err.Error(), "read it") {
		t.Errorf("another text: %v", err)
	}
	if _, err := identify("example.com/n", [][]byte{text}, read); err == nil || !strings.Contains(err.Error(), "not recognised") {
		t.Errorf("another module: %v", err)
	}
	if names, err := identify("example.com/m", [][]byte{[]byte(isc)}, read); err != nil || !slices.Equal(names, []string{"ISC"}) {
		t.Errorf("a text that is known: %q, %v", names, err)
	}
}

func TestLicences_OneModuleThatMayNotBeRequiredFailsTheList(t *testing.T) {
	bad := &requirement{Version: module.Version{Path: "example.com/m", Version: "v1.0.0"}, by: []string{"."}, dir: t.TempDir()}
	if _, err := listOf([]*requirement{bad}); err == nil || !strings.Contains(err.Error(), "example.com/m@v1.0.0") {
		t.Errorf("a module without a licence: %v", err)
	}
}

// What an exception rests on: tests import it, or nobody but the benchmark of other libraries.
func TestLicences_NoProgramLinksAnException(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	all, err := requirements(root)
	if err != nil {
		t.Fatal(err)
	}
	for path := range exceptions {
		if !slices.ContainsFunc(all, func(r *requirement) bool { return r.Path == path }) {
			t.Errorf("%s is an exception and nobody requires it: take it out", path)
		}
	}
	dirs := []string{".", "cmd/holdfast", "examples", "rig"}
	contrib, err := filepath.Glob(filepath.Join(root, "contrib", "*", "go.mod"))
	if err != nil || len(contrib) < 2 {
		t.Fatalf("the modules of contrib are %q: the search has gone blind: %v", contrib, err)
	}
	for _, name := range contrib {
		dirs = append(dirs, filepath.Join("contrib", filepath.Base(filepath.Dir(name))))
	}
	for _, dir := range dirs {
		list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./...")
		list.Dir = filepath.Join(root, dir)
		out, err := list.Output()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		linked := strings.Fields(string(out))
		if !slices.Contains(linked, "github.com/jackc/pgx/v5") && dir != "contrib/mskiam" { // which signs tokens for Kafka
			t.Errorf("%s links no pgx: the search has gone blind", dir)
		}
		for _, path := range linked {
			if _, is := exceptions[path]; is {
				t.Errorf("a package of %s links %s, whose licence is an exception for tests", dir, path)
			}
		}
	}
}
