package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

var (
	pictures = flag.Bool("pictures", false, "write the pictures of docs/console")
	watched  = flag.Duration("watched", 0, "for how long the overview is open before its picture, while events are written and handled")
)

// The pictures of the guide to the console are of this build: a shop with a topic that is missing, a lane without a relay, keys that wait
// and dead letters. go test ./rig/browser -run ThePicturesOfTheGuide -timeout 1h -pictures -watched 20m writes them, with 20 minutes in the charts.
func TestPictures_ThePicturesOfTheGuide(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	b := setup(t)
	for _, sql := range []string{
		"update holdfast.lane set owner = case when lane < 3 then 'shop-1' else 'shop-2' end, lease_until = now() + interval '1 hour' where lane <> 3",
		"update holdfast.lane set saved_at = now() - interval '2 minutes' where lane = 3",
		"insert into holdfast.relay (name, seen_until) values ('shop-1', now() + interval '1 hour'), ('shop-2', now() + interval '1 hour')",
		"select holdfast.write('orders', 'order-77', 'order.placed', '{}', \"time\" => now() - interval '8 minutes') from generate_series(1, 40)",
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, first_at, id, source, type, time)
			select n % 8, 'ordres', 'order-' || n, n, 'topic', 'infinity', now() - interval '27 minutes', 'o-' || n, 'shop', 'order.placed', now() from generate_series(1, 31) n`,
		`insert into holdfast.consumer_type (consumer, type, node, seen_until) select c, 'order.placed', c || '-1', now() + interval '2 minutes' from unnest(array['billing', 'mail', 'stock']) c`,
		`insert into holdfast.consumer_position (consumer, topic, partition, position) select c, 'orders', n, 4711 from unnest(array['billing', 'mail', 'stock']) c, generate_series(0, 5) n`,
		`insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, attempts, errors)
			select 'billing', 'orders', 'order-' || n % 6, n, 'shop', 'w-' || n, 'order.placed', now(), '', case when n < 6 then now() + interval '30 seconds' else 'infinity' end, now() - interval '20 minutes', 3,
			       '{the bank is closed}' from generate_series(0, 23) n`,
		`insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('mail', 'shop', 'order-1', 'orders', '', now(), 'handled'), ('billing', 'shop', 'order-1', 'orders', '', now(), 'dead')`,
	} {
		pgtest.Exec(t, b.Pool, sql)
	}
	id := b.letter("order-1", "order-1", "the bank is closed", `{"amount": 4200, "currency": "EUR", "customer": "c-17"}`)
	letters, err := dlq.New(b.Pool, dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := letters.Edit(t.Context(), id, []byte(`{"amount": 42, "currency": "EUR", "customer": "c-17"}`), "ann", "the amount was in cents"); err != nil {
		t.Fatal(err)
	}
	for n := range 8 {
		b.letter(fmt.Sprint("order-", n+2), fmt.Sprint("order-", n+2), "card declined", `{"amount": 100}`)
	}
	pgtest.Exec(t, b.Pool, "update holdfast.letter set fingerprint = type || ': ' || reason")
	b.open("/")
	for began, n := time.Now(), 0; time.Since(began) < *watched; n++ {
		pgtest.Exec(t, b.Pool, "select holdfast.write('orders', 'order-' || n, 'order.placed', '{}') from generate_series(1, $1::integer) n", 20+n%30+n/7%40)
		pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
			select 'stock', 'shop', 'watched-' || $1::integer || '-' || n, 'orders', '', now(), 'handled' from generate_series(1, $2::integer) n`, n, 15+n%25+n/9%30)
		pgtest.Exec(t, b.Pool, "update holdfast.consumer_position set position = position + 7")
		pgtest.Exec(t, b.Pool, "update holdfast.consumer_type set seen_until = now() + interval '2 minutes'")
		pgtest.Exec(t, b.Pool, "update holdfast.stored set next_at = now() + interval '30 seconds' where next_at < 'infinity'")
		pgtest.Exec(t, b.Pool, `update holdfast.lane l set done = pg_current_snapshot(), saved_at = now(),
			published = l.published + (select count(*) from holdfast.event e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done)) where l.lane <> 3`)
		time.Sleep(time.Second) // sleep: the pace of the traffic
	}
	b.do("be a desk", emulation.SetDeviceMetricsOverride(1200, 320, 1, false))
	for _, picture := range []struct{ file, scheme, path, says string }{
		{"overview.png", "light", "/", "Needs a person"},
		{"find.png", "light", "/find?id=order-1", "the bank is closed"},
		{"letter.png", "light", pathOf(id), "the amount was in cents"},
		{"letters-dark.png", "dark", "/letters", "card declined"},
	} {
		b.do("be "+picture.scheme, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: picture.scheme}}))
		b.open(picture.path)
		b.is(picture.path+" says "+picture.says, `document.body.innerText.includes("`+picture.says+`")`)
		if !*pictures {
			continue
		}
		var png []byte
		b.do("take "+picture.file, chromedp.FullScreenshot(&png, 100))
		if err := os.WriteFile(filepath.Join("..", "..", "docs", "console", picture.file), png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
