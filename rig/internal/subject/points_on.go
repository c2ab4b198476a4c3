//go:build failpoints && unix

package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/failpoint"
)

// points prints what can be ordered, one point a line.
func points() {
	for _, d := range failpoint.Declared() {
		fmt.Printf("%s\t%s\t%s\t%s\n", d.Point, d.Name, d.Before, d.After)
	}
}

func order(text string) error { return failpoint.Order(text) }
