package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// W19.
func TestOrder_AStateDoesNotGoBackWhenDeliveriesOvertakeEachOther(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	pgtest.Exec(t, b.db, "create table subscription (id text primary key, state text, n int default 1)")
	b.in.Handle("subscription.updated", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		var said struct{ Sub, State string }
		if err := json.Unmarshal(e.Payload, &said); err != nil {
			return err
		}
		ok, err := InOrder(ctx, tx, b.in, "subscription/"+said.Sub, e.Time)
		if err != nil || !ok {
			return err
		}
		_, err = tx.Exec(ctx, `insert into subscription as s (id, state) values ($1, $2)
			on conflict (id) do update set state = excluded.state, n = s.n + 1`, said.Sub, said.State)
		return err
	})
	s := b.receiver("stripe", must(Stripe(stripeSecret)))
	for n, c := range []struct {
		created int64
		state   string
		want    string
	}{
		{1_700_000_002, "active", "active"},
		{1_700_000_001, "trialing", "active"},   // older: stale
		{1_700_000_002, "past_due", "past_due"}, // in the same second: no telling, so the one that came last
		{1_700_000_003, "canceled", "canceled"},
		{1_700_000_002, "active", "canceled"},
	} {
		body := fmt.Sprintf(`{"id":"evt_%d","type":"subscription.updated","created":%d,"sub":"sub_1","state":%q}`, n, c.created, c.state)
		// A retry is signed later than what overtook it: the time of the signature must not be taken for that of the event.
		h, err := sign.Stripe(now.Add(time.Duration(-n)*time.Second), []byte(body), stripeSecret)
		if err != nil {
			t.Fatal(err)
		}
		b.want(200, s, h, body) // A stale one is done, and the provider is told so.
		if b.count("select count(*) from subscription where state = $1", c.want) != 1 {
			t.Errorf("after event %d the state is not %s", n, c.want)
		}
	}
	if n := b.count("select n from subscription"); n != 3 {
		t.Errorf("the state was written %d times, want 3", n)
	}
	if n := b.count("select count(*) from holdfast.inbox where result = 'handled'"); n != 5 {
		t.Errorf("%d events are settled, want 5", n)
	}
}

// W19.
func TestOrder_TheTimeOfAnEventIsThatOfWhatHappenedWhereItIsSaid(t *testing.T) {
	signed, happened := now.Add(-time.Minute), now.Add(-time.Hour)
	for _, c := range []struct {
		d    Delivery
		want time.Time
	}{{Delivery{Timestamp: signed, OccurredAt: happened}, happened}, {Delivery{Timestamp: signed}, signed}, {Delivery{}, now}} {
		c.d.ID, c.d.IDSigned = "1", true
		config := Config{}.withDefaults("shop", inbox.Config{})
		e, err := config.event("shop", c.d, nil, nil, now)
		if err != nil || !e.Time.Equal(c.want) {
			t.Errorf("%v, %v; want %v", e.Time, err, c.want)
		}
	}
}

// W16.
func TestOrder_TheEventOfADeliveryKeepsTheIdThatItIsNotKnownBy(t *testing.T) {
	config := Config{Headers: []string{"Content-Type", "X-Long", "X-Twice"}}.withDefaults("github", inbox.Config{})
	h := headers("Content-Type", "application/json", "X-Long", strings.Repeat("x", maxHeader+1), "X-Twice", "a", "X-Twice", "b", "Cookie", "hush")
	e, err := config.event("github", Delivery{ID: "d-1", Type: "push"}, h, []byte("{}"), now)
	want := holdfast.Event{ID: bodyID("push", []byte("{}")), Source: "github", Type: "push", Topic: "webhook.github", Payload: []byte("{}"), Time: now,
		Headers: map[string]string{"content-type": "application/json", "x-twice": "a, b", "webhook-delivery": "d-1"}}
	if err != nil || !reflect.DeepEqual(e, want) {
		t.Errorf("got %+v, %v; want %+v", e, err, want)
	}
	config.Unsigned, config.Headers = ByID, []string{}
	e, err = config.event("github", Delivery{ID: "d-1", Type: "push"}, h, []byte("{}"), now)
	if want.ID, want.Headers = "d-1", map[string]string{}; err != nil || !reflect.DeepEqual(e, want) {
		t.Errorf("got %+v, %v; want %+v", e, err, want)
	}
}

// replay replays every letter.
func replay(b *bundle) {
	b.Helper()
	letters, err := dlq.New(b.db.Pool, dlq.Config{})
	if err == nil {
		_, err = letters.Replay(b.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
	}
	if err != nil {
		b.Fatal(err)
	}
}

func holdfastEvent(id, body string) holdfast.Event {
	return holdfast.Event{ID: id, Source: "shop", Type: "order.placed", Topic: "webhook.shop", Payload: []byte(body)}
}

func recorder() *httptest.ResponseRecorder { return httptest.NewRecorder() }

func request(h http.Header, body io.Reader) *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/", body)
	req.Header = h
	return req
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("the connection was lost") }
