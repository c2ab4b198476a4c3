package operate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// Acting are the flags of every change.
type Acting struct {
	By     string `help:"Your name. Defaults to your login name." placeholder:"NAME"`
	Reason string `help:"Why you do it: required, and kept with what was done." placeholder:"WHY"`
}

// checkReason requires a reason, which later readers of the letter will want.
func (a Acting) checkReason() error {
	if a.Reason == "" {
		return program.UsageError{Err: errors.New("missing flags: --reason=WHY: it is kept with what was done")}
	}
	return nil
}

func (a Acting) by() string {
	if a.By != "" {
		return a.By
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// sayChanged says how many things are done with, or would be, also after an error that came after some of them.
func sayChanged(p *program.Program, n int, what, done string, dryRun bool, err error) {
	switch {
	case dryRun && err == nil:
		fmt.Fprintf(p.Out, "%s would be %s\n", terminal.Count(n, what), done)
	case n > 0 || err == nil:
		fmt.Fprintf(p.Out, "%s %s %s\n", terminal.Count(n, what), terminal.Verb(n, "is", "are"), done)
	}
}

// DLQReplay is holdfast dlq replay.
type DLQReplay struct {
	Chosen  `embed:""`
	wide    `embed:""`
	Acting  `embed:""`
	Letters []int64 `arg:"" optional:"" name:"letter" help:"Ids of the dead letters, as --id."`
	DryRun  bool    `help:"Print how many and which, and change nothing."`
	Limit   int     `help:"Maximum number, the oldest first. Defaults to no limit." placeholder:"N"`
	Rate    float64 `help:"Maximum number per second. Defaults to no limit." placeholder:"N"`
	Name    string  `help:"Name under which an interrupted replay can continue. Defaults to the filter." placeholder:"NAME"`
	Anew    bool    `help:"Start afresh with the dead letters that are open now, instead of continuing a replay."`

	ForgetSteps bool `help:"Forget the recorded steps of their handlers, so that they run again. Without it they are kept, and do not."`
}

// ReplayName is the name under which the same command finds an interrupted replay.
func (r *DLQReplay) ReplayName() string {
	if r.Name != "" {
		return r.Name
	}
	name := "holdfast dlq replay " + r.given()
	if r.ForgetSteps {
		name += " --forget-steps"
	}
	if r.Limit > 0 {
		name = fmt.Sprint(name, " --limit ", r.Limit)
	}
	if len(name) > 255 {
		sum := sha256.Sum256([]byte(name))
		name = "holdfast dlq replay " + hex.EncodeToString(sum[:])
	}
	return name
}

// Shown is how many letters a dry run lists.
const Shown = 20

// everyNow is how often long work reports its progress.
const everyNow = 2 * time.Second

func (r *DLQReplay) Run(p *program.Program) error {
	r.ID = append(r.ID, r.Letters...)
	if !r.DryRun {
		if err := errors.Join(r.checkReason(), r.check(r.Chosen)); err != nil {
			return err
		}
	}
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	letters, err := named(p.Ctx, d, r.ID)
	if err != nil {
		return err
	}
	sayClosed(p, letters)
	f := r.filter()
	f.Limit = r.Limit
	watch := watcher{p: p, doing: "replaying"}
	n, err := d.Replay(p.Ctx, f, dlq.ReplayOptions{
		DryRun:       r.DryRun,
		Rate:         r.Rate,
		By:           r.by(),
		Reason:       r.Reason,
		Name:         r.ReplayName(),
		Anew:         r.Anew,
		ForgetSteps:  r.ForgetSteps,
		ProgressFunc: watch.report,
	})
	if n == 0 && err == nil {
		defer sayUnknown(p, r.Consumer)
	}
	if r.DryRun {
		return watch.wouldBe(d, n, "replayed", r.follows(), err)
	}
	if n > 0 || err == nil { // also after an interruption: those are being delivered
		fmt.Fprintf(p.Out, "%s %s being re-delivered; holdfast dlq list%s --state any shows the result of %s\n", terminal.Count(n, "dead letter"), terminal.Verb(n, "is", "are"), r.follows(), terminal.Verb(n, "it", "them"))
	}
	if left := watch.last.Total - watch.last.Looked; err != nil && watch.begun && left > 0 {
		fmt.Fprintf(p.ErrOut, "stopped with %s left: the same command continues with %s and replays none twice\n", terminal.Count(left, "dead letter"), terminal.Verb(left, "it", "them"))
	}
	return err
}

// named reads the letters with these ids, in any state, and checks that all exist before any is changed: if one id is wrong, the others
// may be too.
func named(ctx context.Context, d *dlq.DLQ, ids []int64) (letters []dlq.Letter, err error) {
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	if len(ids) == 0 {
		return nil, nil
	}
	f := dlq.Filter{
		IDs:        ids,
		State:      dlq.StateAny,
		After:      ids[0] - 1,
		NoPayloads: true,
	}
	for len(letters) < len(ids) { // a page may end for its bytes
		page, err := d.List(ctx, f)
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		letters = append(letters, page...)
		f.After = page[len(page)-1].ID
	}
	found := make(map[int64]bool, len(letters))
	for _, l := range letters {
		found[l.ID] = true
	}
	var missing []error
	for _, id := range ids {
		if !found[id] {
			missing = append(missing, fmt.Errorf("letter %d: %w", id, dlq.ErrNotFound))
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("nothing was changed: %w", errors.Join(missing...))
	}
	return letters, nil
}

// sayClosed tells the user of a replay which of the letters that he named are not open, and so are not replayed.
func sayClosed(p *program.Program, letters []dlq.Letter) {
	for _, l := range letters {
		if l.State != dlq.StateOpen {
			fmt.Fprintf(p.ErrOut, "dead letter %d is not open: it is %s\n", l.ID, l.State)
		}
	}
}

// watcher reports the progress of a call.
type watcher struct {
	p     *program.Program
	doing string
	begun bool
	last  dlq.Progress
	ids   []int64 // the first letters of a dry run
	line  progressLine
}

func (w *watcher) report(progress dlq.Progress) {
	w.last = progress
	switch {
	case !w.begun:
		w.begun, w.line = true, progressLine{p: w.p, doing: w.doing, thing: "dead letter"}
		if progress.Before > 0 {
			fmt.Fprintf(w.p.ErrOut, "continuing an interrupted replay: %s %s replayed before, %d %s left (--anew starts afresh)\n",
				terminal.Count(progress.Before, "dead letter"), terminal.Verb(progress.Before, "was", "were"), progress.Total, terminal.Verb(progress.Total, "is", "are"))
		}
	case len(w.ids) < Shown:
		w.ids = append(w.ids, progress.Letter)
	}
	w.line.report(progress.Looked, progress.Total)
}

// wouldBe reports what a dry run found.
func (w *watcher) wouldBe(d *dlq.DLQ, n int, done, follows string, err error) error {
	if err != nil {
		return err
	}
	fmt.Fprintf(w.p.Out, "%s would be %s\n", terminal.Count(n, "dead letter"), done)
	if n == 0 {
		return nil
	}
	letters, err := d.List(w.p.Ctx, dlq.Filter{IDs: w.ids, State: dlq.StateAny, NoPayloads: true})
	if err != nil {
		return err
	}
	if err := table(w.p.Out, letters); err != nil {
		return err
	}
	if n > len(letters) && len(letters) > 0 {
		fmt.Fprintf(w.p.Out, "and %d more: holdfast dlq list%s --after %d\n", n-len(letters), follows, letters[len(letters)-1].ID)
	}
	return nil
}

type dlqEditCmd struct {
	Acting    `embed:""`
	ID        int64  `arg:"" help:"Id of the dead letter."`
	File      string `arg:"" optional:"" help:"File with the new payload; - is standard input." default:"-"`
	Tombstone bool   `help:"Remove the payload: a Kafka record without a value."`
	Raw       bool   `help:"Store the payload as it is, even if it is not JSON and the event's is."`
}

func (c *dlqEditCmd) Run(p *program.Program) error {
	if err := c.checkReason(); err != nil {
		return err
	}
	var payload []byte
	var err error
	switch {
	case c.Tombstone && c.File != "-":
		return program.UsageError{Err: errors.New("--tombstone and a file exclude each other: give one of them")}
	case c.Tombstone:
	case c.File == "-":
		payload, err = io.ReadAll(os.Stdin)
	default:
		payload, err = os.ReadFile(c.File)
	}
	if err != nil {
		return fmt.Errorf("read the new payload: %w", err)
	}
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	if !c.Raw {
		l, err := d.Get(p.Ctx, c.ID)
		if err != nil {
			return err
		}
		if err := l.CheckPayload(payload); err != nil {
			return fmt.Errorf("%s: correct it, or add --raw to store it as it is", terminal.Clean(err.Error()))
		}
	}
	if err := d.Edit(p.Ctx, c.ID, payload, c.by(), c.Reason); err != nil {
		return err
	}
	l, err := d.Get(p.Ctx, c.ID)
	if err != nil {
		return err
	}
	renamed := ""
	if l.Origin == dlq.OriginRelay { // Consumers may have seen the old one.
		renamed = fmt.Sprintf(", and its event the id %s", terminal.Clean(l.Event.ID))
	}
	fmt.Fprintf(p.Out, "dead letter %d has a new payload%s; holdfast dlq replay --id %d --reason WHY re-delivers it\n", c.ID, renamed, c.ID)
	return nil
}

type dlqDiscardCmd struct {
	Chosen         `embed:""`
	wide           `embed:""`
	Acting         `embed:""`
	program.Asking `embed:""`
	Letters        []int64 `arg:"" optional:"" name:"letter" help:"Ids of the dead letters. Give these or a filter."`
	DryRun         bool    `help:"Print how many and which, and change nothing."`
	Limit          int     `help:"Maximum number, the oldest first. Defaults to no limit." placeholder:"N"`
}

func (c *dlqDiscardCmd) Run(p *program.Program) error {
	if !c.DryRun {
		if err := c.checkReason(); err != nil {
			return err
		}
	}
	if len(c.Letters) > 0 && (c.given() != "" || c.All || c.DryRun || c.Limit > 0) {
		return program.UsageError{Err: errors.New("ids and a filter exclude each other: give one of them (--id is a filter too)")}
	}
	if len(c.Letters) == 0 && !c.DryRun {
		if err := c.check(c.Chosen); err != nil {
			return err
		}
	}
	if !c.DryRun {
		if err := c.Ask(p, "The dead letters are never handled then, and their payloads stay until dlq purge"); err != nil {
			return err
		}
	}
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	if _, err := named(p.Ctx, d, append(c.Letters, c.ID...)); err != nil {
		return err
	}
	for _, id := range c.Letters {
		if err := d.Discard(p.Ctx, id, c.by(), c.Reason); err != nil {
			return err
		}
		fmt.Fprintf(p.Out, "dead letter %d is discarded\n", id)
	}
	if len(c.Letters) > 0 {
		return nil
	}
	f := c.filter()
	f.Limit = c.Limit
	watch := watcher{p: p, doing: "discarding"}
	n, err := d.DiscardAll(p.Ctx, f, dlq.DiscardOptions{
		DryRun:       c.DryRun,
		By:           c.by(),
		Reason:       c.Reason,
		ProgressFunc: watch.report,
	})
	if n == 0 && err == nil {
		defer sayUnknown(p, c.Consumer)
	}
	if c.DryRun {
		return watch.wouldBe(d, n, "discarded", c.follows(), err)
	}
	if n > 0 || err == nil {
		fmt.Fprintf(p.Out, "%s %s discarded\n", terminal.Count(n, "dead letter"), terminal.Verb(n, "is", "are"))
	}
	return err
}

type dlqPurgeCmd struct {
	program.Asking `embed:""`
	Closed         bool `help:"Confirm that you mean replayed and discarded dead letters. Open ones are never purged."`
	Before         age  `help:"Only those closed longer ago than this, such as 30d." placeholder:"SPAN"`
	DryRun         bool `help:"Count them and change nothing."`
}

func (c *dlqPurgeCmd) Run(p *program.Program) error {
	switch {
	case !c.Closed:
		return program.UsageError{Err: errors.New("missing flags: --closed: it confirms that replayed and discarded dead letters are meant; open ones are never purged")}
	case c.Before == 0:
		return program.UsageError{Err: errors.New("missing flags: --before=SPAN: how long ago they were closed, such as 30d")}
	}
	if !c.DryRun {
		if err := c.Ask(p, "The closed dead letters are deleted with their payloads"); err != nil {
			return err
		}
	}
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	n, err := d.Purge(p.Ctx, dlq.PurgeOptions{OlderThan: time.Duration(c.Before), DryRun: c.DryRun})
	switch {
	case c.DryRun && err == nil:
		fmt.Fprintf(p.Out, "%s would be removed\n", terminal.Count(n, "closed dead letter"))
	case n > 0 || err == nil:
		fmt.Fprintf(p.Out, "%s %s removed\n", terminal.Count(n, "closed dead letter"), terminal.Verb(n, "is", "are"))
	}
	return err
}
