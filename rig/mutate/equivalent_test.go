package main

import (
	"path/filepath"
	"testing"
)

// What is declared equivalent is a mutant: a name that fits none was declared for other code.
func TestEquivalent_EachNameIsThatOfAMutant(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	equivalent, err := readEquivalent(equivalentText)
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range targets {
		t.Run(target.dir, func(t *testing.T) {
			t.Parallel()
			p, err := load(t.Context(), target.dir)
			if err != nil {
				t.Fatal(err)
			}
			find := p.find
			if target.sql {
				find = p.findSQL
			}
			var found []*mutant
			for _, name := range target.files {
				ms, err := find(name)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, ms...)
			}
			for _, name := range equivalent.stale(target, target.files, found) {
				t.Errorf("%s is no mutant", name)
			}
		})
	}
}
