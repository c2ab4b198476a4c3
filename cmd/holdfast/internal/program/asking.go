package program

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// Asking is the flag of commands that take something away for good: on a terminal they ask first.
type Asking struct {
	Yes bool `help:"Do not ask. On a terminal the command asks before it continues; a script is not asked."`
}

// Ask asks on a terminal whether to go on. The error says that nothing was changed.
func (a Asking) Ask(p *Program, what string) error {
	if a.Yes || p.Terminal == nil {
		return nil
	}
	fmt.Fprintf(p.ErrOut, "%s. Go on? [y/N] ", what)
	answer, err := bufio.NewReader(p.Terminal).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errors.New("nothing was changed")
}

// PersonAt is standard input if a person is there: it and standard error are terminals.
func PersonAt() io.Reader {
	for _, f := range []*os.File{os.Stdin, os.Stderr} {
		if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			return nil
		}
	}
	return os.Stdin
}
