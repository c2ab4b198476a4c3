package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// watch shows what look returns again and again until ctx ends, and then returns what the last look said: nil, or that something
// needs a person. A look that fails is shown too, and the next one follows: a person who watches an outage wants to see its end.
// On a terminal each look replaces the one before; elsewhere they follow each other.
func watch(ctx context.Context, out io.Writer, inPlace bool, every time.Duration, head func() string, look func(context.Context) ([]byte, bool, error)) error {
	var last error
	for {
		text, needy, err := look(ctx)
		if ctx.Err() != nil {
			return last // what the end of watching cut off says nothing
		}
		switch last = nil; {
		case err != nil:
			last = program.ErrNeedsPerson
			text = fmt.Appendf(nil, "\nstatus cannot be read: %s\n", terminal.Clean(err.Error()))
		case needy:
			last = program.ErrNeedsPerson
		}
		if _, err := out.Write(frame(head(), text, inPlace)); err != nil {
			return err
		}
		timer := time.NewTimer(every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return last
		case <-timer.C:
		}
	}
}

// What moves a terminal's cursor to its first line, and clears the rest of a line and of the screen. To clear the screen before
// each frame would make it flicker.
const (
	toTop     = "\x1b[H"
	clearLine = "\x1b[K\n"
	clearRest = "\x1b[J"
)

// frame is a look as it is printed. head is "" for JSON, which has nothing between its lines.
func frame(head string, text []byte, inPlace bool) []byte {
	if head != "" {
		text = append([]byte(head+"\n"), text...)
	}
	if !inPlace {
		if head != "" {
			text = append(text, '\n')
		}
		return text
	}
	text = bytes.ReplaceAll(text, []byte("\n"), []byte(clearLine))
	return append(append([]byte(toTop), text...), clearRest...)
}

// onTerminal says whether out is a terminal.
func onTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// watching is watch for status.
func (c *statusCmd) watching(p *program.Program, ends state.Ends) error {
	if c.Every <= 0 {
		return program.UsageError{Err: fmt.Errorf("every is %s: it must be positive", c.Every)}
	}
	pool, err := p.LazyPool()
	if err != nil {
		return err
	}
	defer pool.Close()
	c.Pause = 0 // one look is compared with the next
	head := func() string {
		return fmt.Sprintf("holdfast status at %s, every %s", time.Now().Format(time.TimeOnly), c.Every)
	}
	if c.JSON {
		head = func() string { return "" }
	}
	return watch(p.Ctx, p.Out, onTerminal(p.Out) && !c.JSON, c.Every, head, func(ctx context.Context) ([]byte, bool, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, watchTimeout, errors.New("it took too long"))
		defer cancel()
		return c.look(ctx, pool, p.Schema(), ends)
	})
}

// watchTimeout bounds one look.
const watchTimeout = 30 * time.Second
