package operate

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// progressLine reports the progress of long work on standard error, once every now and then, with its rate and the time that is left.
type progressLine struct {
	p       *program.Program
	doing   string // "replaying"
	thing   string // "dead letter"
	begun   time.Time
	saidAt  time.Time
	already int // done before the first report
}

// report says how far the work is, if it is time to. total is 0 if it is not known.
func (l *progressLine) report(done, total int) {
	now := time.Now()
	if l.begun.IsZero() {
		l.begun, l.saidAt, l.already = now, now, done
		return
	}
	if now.Sub(l.saidAt) < everyNow {
		return
	}
	l.saidAt = now
	fmt.Fprintln(l.p.ErrOut, l.doing+": "+Progress(done, total, done-l.already, now.Sub(l.begun), l.thing))
}

// Progress is how far work is that has done so many things in all, some of them in the time that took.
func Progress(done, total, some int, took time.Duration, thing string) string {
	text := terminal.Count(done, thing)
	if total > 0 {
		text = fmt.Sprintf("%d of %s", done, terminal.Count(total, thing))
	}
	if some <= 0 || took <= 0 {
		return text
	}
	rate := float64(some) / took.Seconds()
	text += fmt.Sprintf(", %s/s", rateText(rate))
	if left := total - done; left > 0 {
		text += fmt.Sprintf(", about %s left", time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second))
	}
	return text
}

// rateText has two digits at least, so that a slow rate does not look like none.
func rateText(rate float64) string {
	switch {
	case rate >= 10:
		return fmt.Sprintf("%.0f", rate)
	case rate >= 1:
		return fmt.Sprintf("%.1f", rate)
	default:
		return fmt.Sprintf("%.2g", rate)
	}
}
