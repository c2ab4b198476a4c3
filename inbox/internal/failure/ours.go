package failure

import (
	"fmt"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// This file has the errors in our own words. Nothing withholds them from the log.

// sentence is an error in our own words, which quote no event. of is the error that they are about, if there is one.
type sentence struct {
	words string
	of    error
}

func (s *sentence) Error() string {
	if s.of == nil {
		return s.words
	}
	return s.words + ": " + s.of.Error()
}

func (s *sentence) Unwrap() error { return s.of }

// Ours is a sentence, and OursOf one about err.
func Ours(format string, args ...any) *sentence {
	return &sentence{words: fmt.Sprintf(format, args...)}
}

func OursOf(err error, format string, args ...any) *sentence {
	return &sentence{words: fmt.Sprintf(format, args...), of: err}
}

// OurWords are the sentences of an error, outermost first.
func OurWords(err error) (words string) {
	for node := range foreign.All(err) {
		if s, ok := node.(*sentence); ok {
			words = Joined(words, s.words)
		} else if node == holdfast.ErrKeyErased || node == holdfast.ErrSealBroken {
			words = Joined(words, node.Error())
		}
	}
	return words
}

// Joined is one text after the other, if it has both.
func Joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ": " + b
}
