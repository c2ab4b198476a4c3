package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ofAnyBroker are the packages that run with Kafka, NATS and whatever else has a publisher or a source.
var ofAnyBroker = []string{"relay", "inbox", "console", "find", "metrics"}

// kafkasRules are what these packages may say of Kafka: whatever the broker, a topic's name keeps to Kafka's rule.
var kafkasRules = []string{"it must be a Kafka topic's name", "Kafka takes 1 to 249 letters"}

// saysKafka returns the texts of a file of Go that name Kafka where any broker may be meant, and how many texts there are.
func saysKafka(t *testing.T, path, source string) (found []string, texts int) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		texts++
		if strings.Contains(text, "Kafka") && !slices.ContainsFunc(kafkasRules, func(said string) bool { return strings.Contains(text, said) }) && !strings.HasPrefix(text, "-- ") {
			found = append(found, text)
		}
		return true
	})
	return found, texts
}

func TestBroker_WhatRunsWithAnyBrokerSaysTheBroker(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, path := range sources(t) {
		if !slices.Contains(ofAnyBroker, filepath.ToSlash(filepath.Dir(path))) || strings.HasSuffix(path, "_test.go") {
			continue
		}
		found, texts := saysKafka(t, path, read(t, path))
		seen += texts
		for _, text := range found {
			t.Errorf(`%s says %q: say "the broker", which may be NATS as well`, path, text)
		}
	}
	if seen < 1000 {
		t.Errorf("only %d texts were found: the search has gone blind", seen)
	}
	pages, err := filepath.Glob(filepath.Join(root, "console/pages/*.html"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages of the console, %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "Kafka") {
			t.Errorf(`%s says Kafka: say "the broker", which may be NATS as well`, page)
		}
	}
}

func TestBroker_TheSearchForKafkaSeesMessagesOnly(t *testing.T) {
	t.Parallel()
	found, texts := saysKafka(t, "a.go", `package a

// Kafka is said here.
var a, b, c = "waiting for Kafka", "x is y: it must be a Kafka topic's name", "kafka:orders/0/1"
`)
	if !slices.Equal(found, []string{"waiting for Kafka"}) || texts != 3 {
		t.Errorf("of %d texts it found %q", texts, found)
	}
}
