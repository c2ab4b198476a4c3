package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// page prints the story: numbered steps, how long each took, and what is to be said of it.
type page struct {
	out   io.Writer
	steps int
	lines []string
	log   bytes.Buffer
}

// logger keeps the library's log aside: it is of interest only where a run fails.
func (p *page) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&p.log, nil)) }

func (p *page) begin(title string) {
	p.steps++
	fmt.Fprintf(p.out, "%2d. %-62s", p.steps, title)
}

// say keeps a line for when the step has ended.
func (p *page) say(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

func (p *page) done(took time.Duration) {
	fmt.Fprintf(p.out, "%6.2f s\n", took.Seconds())
	for _, line := range p.lines {
		fmt.Fprintf(p.out, "    %s\n", line)
	}
	p.lines = nil
}

// end is called when all that could still log has stopped.
func (p *page) end(err error, took time.Duration) {
	switch {
	case err == nil:
		fmt.Fprintf(p.out, "\nEvery promise held. %.1f s in all.\n", took.Seconds())
	case p.log.Len() > 0 && !errors.Is(err, errInterrupted):
		fmt.Fprintf(p.out, "\nWhat the library logged:\n%s", p.log.String())
	}
}
