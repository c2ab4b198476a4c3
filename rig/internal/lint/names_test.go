package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// longest is how long the sentence in a test's name may be, so that it can be read in a list.
const longest = 60

// ruleNumber is the number of a rule of docs/ at the head of a sentence, as in R5ARepeat.
var ruleNumber = regexp.MustCompile(`^[RCW]\d+[A-Z]`)

// platform is what a file's name says of where, or how, its tests run: it is no part of the component.
var platform = regexp.MustCompile(`_(internal|db|linux|unix)$`)

// componentOf is what the tests of a file are about, in lower case: relay/wrap_order_test.go tests wraporder, and a main_test.go what
// its folder has.
func componentOf(file string) string {
	stem := platform.ReplaceAllString(strings.TrimSuffix(filepath.Base(file), "_test.go"), "")
	if stem == "main" {
		stem = filepath.Base(filepath.Dir(file))
	}
	return strings.ReplaceAll(stem, "_", "")
}

// problemOf says what is wrong with a test's name.
func problemOf(file, name string) string {
	component, sentence, ok := strings.Cut(strings.TrimPrefix(name, "Test"), "_")
	switch want := componentOf(file); {
	case !ok || sentence == "":
		return "it must be the component and the behaviour, as TestFence_AZombieCommitsNothing"
	case strings.ToLower(component) != want && !(component == "Command" && filepath.Base(file) == "main_test.go"):
		return fmt.Sprintf("it must begin with the component that its file is about, as Test%s%s_", strings.ToUpper(want[:1]), want[1:])
	case len(sentence) > longest:
		return fmt.Sprintf("its sentence has %d characters, at most %d: say the behaviour, and the circumstances in a comment", len(sentence), longest)
	case ruleNumber.MatchString(sentence):
		return "its sentence begins with a rule's number: that belongs into a comment"
	}
	return ""
}

func TestNames_ATestIsNamedByItsComponentAndItsBehaviour(t *testing.T) {
	tests := 0
	for _, file := range sources(t) {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") || f.Name.Name == "TestMain" {
				continue
			}
			tests++
			if problem := problemOf(file, f.Name.Name); problem != "" {
				t.Errorf("%s: %s: %s", file, f.Name.Name, problem)
			}
		}
	}
	if tests < 1000 {
		t.Errorf("only %d tests were found: the search has gone blind", tests)
	}
}

func TestNames_WhatIsWrongWithANameIsSaid(t *testing.T) {
	for name, want := range map[string]string{
		"TestWrapOrder_ARowIsWrapped":                     "",
		"TestARowIsWrapped":                               "the component and the behaviour",
		"TestWrapOrder_":                                  "the component and the behaviour",
		"TestWrap_ARowIsWrapped":                          "must begin with the component",
		"TestWrapOrder_R5ARowIsWrapped":                   "a rule's number",
		"TestWrapOrder_" + strings.Repeat("A", longest):   "",
		"TestWrapOrder_" + strings.Repeat("A", longest+1): "61 characters, at most 60",
	} {
		if got := problemOf("relay/wrap_order_internal_test.go", name); got != want && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
