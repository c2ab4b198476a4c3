package operate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

// pausable are the flags that say what is paused or resumed.
type pausable struct {
	Topic    string `help:"The topic. With --consumer and --key: the topic of the key." placeholder:"TOPIC"`
	Consumer string `help:"The consumer." placeholder:"NAME"`
	Key      string `help:"With --consumer and --topic: only this key." placeholder:"KEY"`
	Acting   `embed:""`
}

// target is what the flags name.
func (pa pausable) target() (waiting.Pausable, error) {
	switch {
	case pa.Topic == "" && pa.Consumer == "":
		return waiting.Pausable{}, program.UsageError{Err: errors.New("missing flags: --topic=TOPIC or --consumer=NAME")}
	case pa.Consumer == "" && pa.Key != "", pa.Consumer != "" && (pa.Topic == "") != (pa.Key == ""):
		return waiting.Pausable{}, program.UsageError{Err: errors.New("give --topic alone, --consumer alone, or --consumer, --topic and --key for one key")}
	}
	return waiting.Pausable{Topic: pa.Topic, Consumer: pa.Consumer, Key: pa.Key}, pa.checkReason()
}

// open is target, and what changes it until done is called.
func (pa pausable) open(p *program.Program) (target waiting.Pausable, room *waiting.Room, done func(), err error) {
	if target, err = pa.target(); err != nil {
		return target, nil, nil, err
	}
	room, done, err = openRoom(p)
	return target, room, done, err
}

// Pause is holdfast pause.
type Pause struct {
	pausable `embed:""`
	Force    bool `help:"Pause a consumer too that this database does not know yet."`
}

// known refuses a consumer that nobody has: a pause under a wrong name would stop nobody, and nobody would notice.
func (pa *Pause) known(p *program.Program, room *waiting.Room, target waiting.Pausable) error {
	if target.Consumer == "" || pa.Force {
		return nil
	}
	unknown, err := unknownConsumer(p, room, target.Consumer)
	if err != nil || unknown == "" {
		return err
	}
	return fmt.Errorf("nothing is paused: %s. To pause one before it begins, add --force", unknown)
}

// unknownConsumer says that the database does not know a consumer, and which it knows. It is "" if it does.
func unknownConsumer(p *program.Program, room *waiting.Room, consumer string) (says string, err error) {
	names, err := room.Consumers(p.Ctx)
	if err != nil || slices.Contains(names, consumer) {
		return "", err
	}
	known := "it knows none"
	if len(names) > 0 {
		rest := ""
		if len(names) > 20 {
			names, rest = names[:20], fmt.Sprintf(" and %d more", len(names)-20)
		}
		known = "it knows " + strings.Join(names, ", ") + rest
	}
	return terminal.Clean("this database knows no consumer " + consumer + ": " + known), nil
}

// sayUnknown tells the user of a command that found nothing of a consumer that the database does not know one of that name: it may be mistyped.
func sayUnknown(p *program.Program, consumer string) {
	if consumer == "" {
		return
	}
	room, done, err := openRoom(p)
	if err != nil {
		return // the command has said what it came for
	}
	defer done()
	if says, err := unknownConsumer(p, room, consumer); err == nil && says != "" {
		fmt.Fprintln(p.ErrOut, says)
	}
}

func (pa *Pause) Run(p *program.Program) error {
	target, room, done, err := pa.open(p)
	if err != nil {
		return err
	}
	defer done()
	if err := pa.known(p, room, target); err != nil {
		return err
	}
	changed, err := room.Pause(p.Ctx, target, pa.by(), pa.Reason)
	if err != nil {
		return err
	}
	if changed {
		fmt.Fprintf(p.Out, "%s is paused; holdfast resume%s --reason WHY ends that\n", terminal.Clean(target.String()), state.Flags(target))
		return nil
	}
	all, err := room.Paused(p.Ctx)
	if err != nil {
		return err
	}
	for _, of := range all {
		if of.Pausable == target {
			fmt.Fprintf(p.Out, "%s has been paused already, by %s since %s: %s\n", terminal.Clean(target.String()), terminal.Clean(of.By), of.At.UTC().Format(time.RFC3339), terminal.Clean(of.Reason))
			return nil
		}
	}
	fmt.Fprintf(p.Out, "%s was paused, and has been resumed since\n", terminal.Clean(target.String()))
	return nil
}

// Resume is holdfast resume.
type Resume struct {
	pausable `embed:""`
}

func (r *Resume) Run(p *program.Program) error {
	target, room, done, err := r.open(p)
	if err != nil {
		return err
	}
	defer done()
	changed, err := room.Resume(p.Ctx, target, r.by(), r.Reason)
	if err != nil {
		return err
	}
	if !changed {
		return fmt.Errorf("%s is not paused: holdfast status shows what is", terminal.Clean(target.String()))
	}
	fmt.Fprintf(p.Out, "%s is resumed\n", terminal.Clean(target.String()))
	return nil
}
