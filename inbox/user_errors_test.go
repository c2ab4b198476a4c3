package inbox

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// fails are the ways by which the errors of handlers come to the inbox, each that of the event's type.
var fails = map[string]func(in *Inbox, of map[string]error){
	"returned": returned,
	"a panic": func(in *Inbox, of map[string]error) {
		for name, err := range of {
			in.Handle(name, func(context.Context, pgx.Tx, holdfast.Event) error { panic(err) })
		}
	},
	"of a batch": func(in *Inbox, of map[string]error) {
		for name, err := range of {
			in.HandleBatch(name, func(context.Context, pgx.Tx, []holdfast.Event) error { return err })
		}
	},
	"under a middleware": func(in *Inbox, of map[string]error) {
		in.Use(func(next Handler) Handler {
			return func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error { return next(ctx, tx, e) }
		})
		returned(in, of)
	},
	"of a middleware": func(in *Inbox, of map[string]error) {
		in.Use(func(Handler) Handler {
			return func(_ context.Context, _ pgx.Tx, e holdfast.Event) error { return of[e.Type] }
		})
		for name := range of {
			in.Handle(name, effectOf)
		}
	},
	"of a codec": func(in *Inbox, of map[string]error) {
		for name, err := range of {
			On(in, name, func(context.Context, pgx.Tx, string, holdfast.Event) error { return nil }, WithCodec(badCodec{err}))
		}
	},
	"of a dependency that nobody needs": func(in *Inbox, of map[string]error) {
		for name, err := range of {
			in.Handle(name, func(context.Context, pgx.Tx, holdfast.Event) error { return Unavailable("stripe", err) })
		}
	},
	"permanent": func(in *Inbox, of map[string]error) {
		for name, err := range of {
			in.Handle(name, func(context.Context, pgx.Tx, holdfast.Event) error { return retry.Permanent(err) })
		}
	},
}

func returned(in *Inbox, of map[string]error) {
	for name, err := range of {
		in.Handle(name, func(context.Context, pgx.Tx, holdfast.Event) error { return err })
	}
}

// badErrors are the errors by the types of their events, with what each must say.
func badErrors() (of map[string]error, says map[string]string) {
	of, says = map[string]error{}, map[string]string{}
	for _, bad := range badly.Errors() {
		of[bad.Name], says[bad.Name] = bad.Err, bad.Says
	}
	return of, says
}

type badCodec struct{ err error }

func (c badCodec) Encode(_ context.Context, e holdfast.Event, _ any) (holdfast.Event, error) {
	return e, c.err
}
func (c badCodec) Decode(context.Context, holdfast.Event, any) error { return c.err }

// An error whose methods panic is an error like others: the process lives, the event has its attempts and becomes a dead letter.
// Whoever reads the error, RedactErrorFunc and observers included, reads that its method panicked.
func TestUserErrors_AnErrorThatMayPanicIsAnErrorLikeOthers(t *testing.T) {
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var log logtest.Log
			of, says := badErrors()
			in := b.inbox(func(c *Config) {
				c.Retry.Attempts, c.ImmediateRetries = 2, 1
				c.RedactErrorFunc, c.Logger = error.Error, slog.New(slog.NewTextHandler(&log, nil))
			})
			fail(in, of)
			for id, want := range says {
				b.receive(in, typed(id, id, id), Dead)
				var texts []string
				if err := b.db.QueryRow(b.Context(), "select errors from holdfast.letter where event_id = $1", id).Scan(&texts); err != nil {
					t.Fatal(err)
				}
				attempts := 2
				if name == "permanent" || name == "of a codec" || retry.IsPermanent(of[id]) && name != "a panic" {
					attempts = 1
				}
				if len(texts) != attempts || !strings.Contains(texts[0], want) || strings.Contains(strings.Join(texts, ""), "4111") {
					t.Errorf("%s: the letter says %q, want %q from %d attempts", id, texts, want, attempts)
				}
				if line := log.Take(); !strings.Contains(line, want) {
					t.Errorf("%s: the log says %q, want %q", id, line, want)
				}
			}
		})
	}
}

func TestUserErrors_AnErrorThatMayPanicArrivesInEveryWay(t *testing.T) {
	skip.InShort(t, "it takes seconds: every kind of error in each way")
	for name, arrive := range arrivals {
		for _, how := range []string{"returned", "a panic", "of a batch"} {
			t.Run(name+", "+how, func(t *testing.T) {
				b := setup(t)
				of, says := badErrors()
				in := b.inbox(func(c *Config) { c.Retry.Attempts, c.RedactErrorFunc = 2, error.Error })
				fails[how](in, of)
				in.Handle("order.placed", effectOf)
				var events []holdfast.Event
				for id := range says {
					events = append(events, typed(id, id, id))
				}
				arrive(b, in, append(events, event("good", "k"))...)
				b.awaitLetters(int64(len(says)))
				if !wait.For(wait.Limit(), func() bool { return b.effects("good") == 1 }) {
					t.Error("an innocent event was not handled")
				}
				for id, want := range says {
					if n := b.count("select count(*) from holdfast.letter where event_id = $1 and strpos(array_to_string(errors, ' '), $2) > 0", id, want); n != 1 {
						t.Errorf("%s: its letter does not say %q", id, want)
					}
				}
			})
		}
	}
}

func TestUserErrors_AFunctionThatRedactsMayPanic(t *testing.T) {
	t.Parallel()
	env := &env{settings: settings{c: Config{RedactErrorFunc: func(error) string { panic("Ann") }}.withDefaults()}}
	if got, want := env.cause(&failure.HandlerError{Err: errors.New("Ann")}, event("1", "k")), "RedactErrorFunc panicked"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUserErrors_TheLogSaysByDefaultWhoseMethodPanicked(t *testing.T) {
	t.Parallel()
	env := &env{settings: settings{c: Config{}.withDefaults()}}
	for _, bad := range badly.Errors() {
		got := env.cause(&failure.HandlerError{Err: foreign.Error(bad.Err)}, event("1", "k"))
		if whose, _, panics := strings.Cut(bad.Says, " panicked"); panics && !strings.HasSuffix(got, whose+" panicked") {
			t.Errorf("%s: the log says %q, want %q", bad.Name, got, whose)
		}
		if strings.Contains(got, "planned") {
			t.Errorf("%s: the log quotes the panic: %q", bad.Name, got)
		}
	}
}

// What a source answers is a user's code as well.
func TestUserErrors_AnErrorOfASourceMayPanic(t *testing.T) {
	for _, bad := range badly.Errors() {
		t.Run(bad.Name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			in.Handle("order.placed", effectOf)
			s := &badSource{bad: bad.Err, gen: newFakeGeneration(logOf(event("1", "k")))}
			b.run(func(ctx context.Context) error { return in.Consume(ctx, s) })
			b.awaitOutcome("1", Handled)
		})
	}
}

// badSource fails once in each of its methods.
type badSource struct {
	bad    error
	gen    *fakeGeneration
	joined int
}

func (s *badSource) Open(context.Context, time.Duration) (source.Session, error) { return s, nil }
func (s *badSource) Close()                                                      {}
func (s *badSource) Next(ctx context.Context) (source.Generation, error) {
	if s.joined++; s.joined == 1 {
		return nil, s.bad
	}
	if s.joined > 2 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &badGeneration{fakeGeneration: s.gen, bad: s.bad}, nil
}

type badGeneration struct {
	*fakeGeneration
	bad             error
	bounds, fetches int
}

func (g *badGeneration) Bounds(ctx context.Context, tp source.TopicPartition) (first, end int64, err error) {
	if g.bounds++; g.bounds == 1 {
		return 0, 0, g.bad
	}
	return g.fakeGeneration.Bounds(ctx, tp)
}

func (g *badGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	if g.fetches++; g.fetches == 1 {
		return source.Page{}, g.bad
	}
	return g.fakeGeneration.Fetch(ctx, tp, offset, maxBytes)
}

func (g *badGeneration) Commit(context.Context, map[source.TopicPartition]int64) error { return g.bad }
