package inbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

type orderV1 struct{ Total float64 }
type orderV2 struct{ Cents int }
type orderV3 struct {
	Cents    int
	Currency string
}

func v1to2(o orderV1) (orderV2, error) {
	if o.Total < 0 {
		return orderV2{}, errors.New("the total is SECRET")
	}
	return orderV2{Cents: int(o.Total * 100)}, nil
}
func v2to3(o orderV2) (orderV3, error) { return orderV3{Cents: o.Cents, Currency: "EUR"}, nil }

// said is a log that a test reads.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func withPayload(e holdfast.Event, payload string) holdfast.Event {
	e.Payload = []byte(payload)
	return e
}

func TestTyped_APayloadThatDoesNotDecodeIsADeadLetterAtOnce(t *testing.T) {
	for name, arrive := range arrivals {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			var log said
			in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			On(in, "order.placed", func(ctx context.Context, tx pgx.Tx, o struct{ Lines []struct{ Qty int } }, e holdfast.Event) error {
				return effectOf(ctx, tx, e)
			})
			On(in, "order.noted", func(ctx context.Context, tx pgx.Tx, o struct{ Note string }, e holdfast.Event) error {
				return effectOf(ctx, tx, e)
			},
				WithCodec(holdfast.JSON{Strict: true}))
			arrive(b, in,
				withPayload(event("1", "k"), `{"Lines":[{"Qty":1},{"Qty":"SECRET"}]}`),
				withPayload(event("2", "k"), `{"Lines":[{"Qty":1,"More":2}],"SECRET":3}`),
				withPayload(typed("3", "l", "order.noted"), `{"Note":"","SECRET":3}`),
				withPayload(typed("4", "l", "order.noted"), `{"Note":""}`))
			b.awaitLetters(2)
			for id, reason := range map[string]string{
				"1": `payload: field "Lines[1].Qty": a string where an int is wanted`,
				"3": `payload: a field that struct { Note string } does not have`,
			} {
				if n := b.count("select count(*) from holdfast.letter where event_id = $1 and reason = $2 and attempts = 1", id, reason); n != 1 {
					t.Errorf("no letter of %s after one attempt says %q", id, reason)
				}
			}
			b.nothingStored()
			if !wait.For(wait.Limit(), func() bool { return b.effects("2") == 1 && b.effects("4") == 1 }) {
				t.Error("what decodes was not handled")
			}
			if name == "ReceiveTx" {
				return // It logs nothing: its caller's transaction is not committed.
			}
			if said := log.String(); strings.Contains(said, "SECRET") || !strings.Contains(said, `error="payload: field \"Lines[1].Qty\": a string where an int is wanted"`) || !strings.Contains(said, "error_code=VALIDATION") {
				t.Errorf("the log says\n%s", said)
			}
		})
	}
}

func TestTyped_OlderVersionsBecomeNewOnes(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	got := map[string]orderV3{}
	On(in, "order.placed.v3", func(_ context.Context, _ pgx.Tx, o orderV3, e holdfast.Event) error {
		got[e.Type] = o
		return nil
	}, WithUpcast("order.placed", v1to2), WithUpcast("order.placed.v2", v2to3), WithRetry(retry.Policy{Attempts: 7}))
	b.receive(in, withPayload(typed("1", "a", "order.placed"), `{"Total":1.25}`), Handled)
	b.receive(in, withPayload(typed("2", "b", "order.placed.v2"), `{"Cents":300}`), Handled)
	b.receive(in, withPayload(typed("3", "c", "order.placed.v3"), `{"Cents":4,"Currency":"CHF"}`), Handled)
	want := map[string]orderV3{"order.placed": {125, "EUR"}, "order.placed.v2": {300, "EUR"}, "order.placed.v3": {4, "CHF"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	b.receive(in, withPayload(typed("4", "d", "order.placed"), `{"Total":-1}`), Dead)
	b.receive(in, withPayload(typed("5", "e", "order.placed"), `{"Total":"1"}`), Dead)
	for id, reason := range map[string]string{
		"4": `payload: it is a inbox.orderV1, of the type "order.placed", and cannot become a inbox.orderV2`,
		"5": `payload: field "Total": a string where a float64 is wanted`,
	} {
		if n := b.count("select count(*) from holdfast.letter where event_id = $1 and reason = $2", id, reason); n != 1 {
			t.Errorf("no letter of %s says %q", id, reason)
		}
	}
	for _, eventType := range []string{"order.placed", "order.placed.v2", "order.placed.v3"} {
		if n := in.of(eventType).Retry.Attempts; n != 7 {
			t.Errorf("%s has %d attempts, want 7", eventType, n)
		}
	}
}

func TestTyped_UpcastsThatDoNotMeetAreSaidAtTheStart(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	On(in, "a", func(context.Context, pgx.Tx, orderV3, holdfast.Event) error { return nil }, WithUpcast("a1", v2to3), WithUpcast("a2", v1to2))
	On(in, "b", func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { return nil }, WithUpcast[orderV1, orderV2]("b1", nil))
	in.Handle("c", effectOf, WithCodec(holdfast.JSON{}))
	in.HandleBatch("d", func(context.Context, pgx.Tx, []holdfast.Event) error { return nil }, WithUpcast("d1", v1to2))
	_, err := in.Receive(t.Context(), event("1", "k"))
	want := strings.Join([]string{
		`inbox: configuration: type "a": the upcast from "a1" makes a inbox.orderV3: it must make a inbox.orderV1, what the upcast from "a2" takes`,
		`type "a": the upcast from "a2" makes a inbox.orderV2: it must make a inbox.orderV3, the handler's type`,
		`type "b": the upcast from "b1" is nil: it must be a function from inbox.orderV1 to inbox.orderV2`,
		`type "c": WithCodec and WithUpcast are for On and OnBatch: Handle and HandleBatch get payloads as they come`,
		`type "d": WithCodec and WithUpcast are for On and OnBatch: Handle and HandleBatch get payloads as they come`,
	}, "\n")
	if !errors.Is(err, ErrConfiguration) || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestTyped_ATombstoneIsNilForAPointerAndElseADeadLetter(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	var nils, values int
	On(in, "pointer", func(_ context.Context, _ pgx.Tx, o *orderV2, _ holdfast.Event) error {
		if o == nil {
			nils++
		} else if o.Cents == 5 {
			values++
		}
		return nil
	}, WithUpcast("pointer.v1", func(o orderV1) (*orderV2, error) { return &orderV2{Cents: int(o.Total)}, nil }))
	On(in, "value", func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { return nil })
	tombstone := func(id, eventType string) holdfast.Event {
		e := typed(id, id, eventType)
		e.Payload = nil
		return e
	}
	b.receive(in, tombstone("1", "pointer"), Handled)
	b.receive(in, tombstone("2", "pointer.v1"), Handled)
	b.receive(in, withPayload(typed("3", "c", "pointer"), `{"Cents":5}`), Handled)
	b.receive(in, withPayload(typed("4", "d", "pointer.v1"), `{"Total":5}`), Handled)
	if nils != 2 || values != 2 {
		t.Errorf("%d tombstones and %d values, want 2 and 2", nils, values)
	}
	b.receive(in, tombstone("5", "value"), Dead)
	if n := b.count("select count(*) from holdfast.letter where reason = 'payload: a tombstone where inbox.orderV2 is wanted: a handler of *inbox.orderV2 takes both'"); n != 1 {
		t.Error("no letter says that a tombstone came")
	}
}

// failing is a codec that fails as it is told.
type failing struct{ err error }

func (f failing) Encode(context.Context, holdfast.Event, any) (holdfast.Event, error) {
	return holdfast.Event{}, f.err
}
func (f failing) Decode(context.Context, holdfast.Event, any) error { return f.err }

// away is an error that says that it will pass.
type away struct{ error }

func (away) RetryClass() retry.Class { return retry.Unavailable }

func TestTyped_ACodecSaysWhetherAnotherAttemptMayHelp(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		want   Outcome
		reason string
	}{
		"any error":              {errors.New("SECRET is odd"), Dead, "payload: it cannot be decoded"},
		"a payload cut off":      {io.ErrUnexpectedEOF, Dead, "payload: it cannot be decoded"},
		"a reason":               {fmt.Errorf("x: %w", &holdfast.PayloadError{Field: "a", Problem: "b"}), Dead, `payload: field "a": b`},
		"unavailable":            {away{errors.New("no answer")}, Retrying, ""},
		"later":                  {retry.After(errors.New("no answer"), 1), Retrying, ""},
		"permanent all the same": {retry.Permanent(away{errors.New("no answer")}), Dead, "payload: it cannot be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			On(in, "order.placed", func(context.Context, pgx.Tx, orderV1, holdfast.Event) error { return nil }, WithCodec(failing{c.err}))
			b.receive(in, event("1", "k"), c.want)
			if c.want == Dead && b.count("select count(*) from holdfast.letter where reason = $1", c.reason) != 1 {
				t.Errorf("no letter says %q", c.reason)
			}
			if err := undecodable(c.err); retry.Classify(err) != retry.Validation {
				t.Errorf("its class is %s", retry.Classify(err))
			}
		})
	}
}

func TestTyped_ABatchOfValuesLosesOnlyWhatDoesNotDecode(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.BatchSize = 50 })
	var mu sync.Mutex
	most := 0
	OnBatch(in, "order.placed", func(ctx context.Context, tx pgx.Tx, values []Value[orderV2]) error {
		mu.Lock()
		most = max(most, len(values))
		mu.Unlock()
		for _, v := range values {
			v.Event.Key = fmt.Sprint(v.Value.Cents)
			if err := effectOf(ctx, tx, v.Event); err != nil {
				return err
			}
		}
		return nil
	})
	log := keyed(100, 100)
	for i := range log {
		log[i].Payload = fmt.Appendf(nil, `{"Cents":%d}`, i)
	}
	log[30].Payload = []byte(`{"Cents":"thirty"}`)
	b.consumeFake(in, newFakeGeneration(logOf(log...)))
	b.awaitSettled(100)
	if n := b.count("select count(*) from effect where key = id::int::text"); n != 99 || most < 2 {
		t.Errorf("%d effects, at most %d together; want 99, several together", n, most)
	}
	if n := b.count("select count(*) from holdfast.letter where event_id = '00030'"); n != 1 {
		t.Error("the one that does not decode is no dead letter")
	}
}

func TestTyped_ATypedHandlerIsRegisteredOnce(t *testing.T) {
	in := setup(t).inbox()
	handle := func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { return nil }
	On(in, "order.placed.v2", handle, WithUpcast("order.placed", v1to2))
	for name, again := range map[string]func(){
		"its type":          func() { On(in, "order.placed.v2", handle) },
		"an older version":  func() { in.Handle("order.placed", effectOf) },
		"a handler of none": func() { On[orderV2](in, "c", nil) },
		"a batch of none":   func() { OnBatch[orderV2](in, "c", nil) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was registered", name)
				}
			}()
			again()
		}()
	}
}

// panicking is a codec that panics as it is told.
type panicking struct{ with any }

func (p panicking) Encode(context.Context, holdfast.Event, any) (holdfast.Event, error) {
	panic(p.with)
}
func (p panicking) Decode(context.Context, holdfast.Event, any) error { panic(p.with) }

// Whoever checks a payload, as the console, survives a panic of what reads it. What it panicked with may quote the payload.
func TestTyped_APanicWhileAPayloadIsCheckedIsAnError(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) {
		c.Decryptor = decryptFunc(func(holdfast.Sealed) ([]byte, error) { panic("SECRET") })
	})
	handle := func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { return nil }
	On(in, "text", handle, WithCodec(panicking{"SECRET"}))
	On(in, "error", handle, WithCodec(panicking{errors.New("SECRET")}))
	On(in, "upcast", handle, WithUpcast("upcast.v1", func(orderV1) (orderV2, error) { panic("SECRET") }))
	for _, c := range []struct{ eventType, key, want string }{
		{"text", "", "the codec panicked: a value of type string"},
		{"error", "", "the codec panicked: a value of type *errors.errorString"},
		{"upcast.v1", "", "the codec panicked: a value of type string"},
		{"upcast", "k", "the decryptor panicked: a value of type string"},
	} {
		e := withPayload(typed("1", "", c.eventType), `{}`)
		if c.key != "" {
			e.Headers = map[string]string{"holdfast-encryption": "upper " + c.key}
		}
		if err := in.CheckPayload(t.Context(), e); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.eventType, err, c.want)
		}
	}
}

func TestTyped_APayloadIsCheckedWithoutAHandlersRun(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Decryptor = decryptFunc(upper) })
	On(in, "order", func(context.Context, pgx.Tx, orderV2, holdfast.Event) error { panic("it runs") }, WithUpcast("order.v1", v1to2))
	OnBatch(in, "refund", func(context.Context, pgx.Tx, []Value[*orderV2]) error { panic("it runs") })
	in.Handle("bytes", func(context.Context, pgx.Tx, holdfast.Event) error { panic("it runs") })
	for _, c := range []struct{ eventType, payload, key, want string }{
		{"order", `{"cents": 1}`, "", ""},
		{"order", `{"cents": "1"}`, "", `payload: field "Cents": a string where an int is wanted`},
		{"order", "-", "", "payload: a tombstone where inbox.orderV2 is wanted"},
		{"order.v1", `{"total": 1.5}`, "", ""},
		{"order.v1", `{"total": true}`, "", `payload: field "Total": a bool where a float64 is wanted`},
		{"order.v1", `{"total": -1}`, "", "cannot become a inbox.orderV2"},
		{"refund", `[]`, "", "payload: "},
		{"refund", "-", "", ""},
		{"bytes", `{`, "", ""},
		{"unknown", `{`, "", ""},
		{"order", `{"cents": 1}`, "k", ""}, // decrypted to {"CENTS": 1}
		{"order", `[]`, "k", "payload: "},
		{"order", `{"cents": 1}`, "erased", `decrypt the payload (key "erased")`},
	} {
		e := withPayload(event("1", ""), c.payload)
		if c.payload == "-" {
			e.Payload = nil
		}
		e.Type, e.Headers = c.eventType, nil
		if c.key != "" {
			e.Headers = map[string]string{"holdfast-encryption": "upper " + c.key}
		}
		err := in.CheckPayload(t.Context(), e)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %s: %v, want %q", c.eventType, c.payload, err, c.want)
		}
	}
}
