package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// permissive are the licences, by SPDX's names, that a module of ours may require. They ask for a notice at most.
var permissive = []string{"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-2-Clause-Views", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "Unlicense", "Zlib"}

// leastKnown is how much of a licence file, in percent of its words, must be text of licences that are known. The rest is
// names, and notices about parts.
const leastKnown = 75

// licenceFile is what a file with a licence is called.
var licenceFile = regexp.MustCompile(`(?i)^(un)?licen[cs]e([.-].*)?$|^copying([.-].*)?$`)

// notOfCode is a file that has a licence of something else: LICENSE.docs of opencontainers is that of its documents.
var notOfCode = regexp.MustCompile(`(?i)\.(go|docs)$`)

// licencesIn are the texts of the licence files at the top of a module.
func licencesIn(dir string) (texts [][]byte, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenceFile.MatchString(entry.Name()) || notOfCode.MatchString(entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// classify names the licences of a module by the texts of its licence files. Each text must be known.
func classify(texts [][]byte) (names []string, err error) {
	if len(texts) == 0 {
		return nil, fmt.Errorf("it has no licence file")
	}
	for _, text := range texts {
		found := licensecheck.Scan(text)
		if found.Percent < leastKnown {
			return nil, fmt.Errorf("its licence is not recognised: %.0f %% of the text is of known licences, want %d %%", found.Percent, leastKnown)
		}
		for _, match := range found.Match {
			if !match.IsURL {
				names = append(names, match.ID)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// byHand is a licence that a person has read, since licensecheck does not know its text.
type byHand struct {
	licence string
	sum     string // SHA-256 of the licence files, so that another text is read again
}

// identify names the licences of a module, by hand where its texts are those that were read, else by classify.
func identify(path string, texts [][]byte, read map[string]byHand) (names []string, err error) {
	names, err = classify(texts)
	known, is := read[path]
	if err == nil || !is {
		return names, err
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(bytes.Join(texts, nil))); sum != known.sum {
		return nil, fmt.Errorf("its licence was read by hand as %s, and the text is another one since (SHA-256 %s): read it", known.licence, sum)
	}
	return []string{known.licence}, nil
}

// exception lets a module have a licence that is not permissive.
type exception struct {
	licence string
	by      []string // the only modules of ours that may require it
	reason  string   // it is part of the list
}

// allowed says why a module with these licences must not be required by the modules of ours in by.
func allowed(path string, licences, by []string, exceptions map[string]exception) error {
	for _, licence := range licences {
		if slices.Contains(permissive, licence) {
			continue
		}
		e, known := exceptions[path]
		if !known || e.licence != licence {
			return fmt.Errorf("its licence %s is not permissive: do without the module, or add an exception with a reason", licence)
		}
		for _, dir := range by {
			if !slices.Contains(e.by, dir) {
				return fmt.Errorf("its licence %s is an exception for %s, and %s requires it too", licence, strings.Join(e.by, ", "), dir)
			}
		}
	}
	return nil
}
