package dlq_test

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/wire"
)

func TestOrder_LettersOfOneKeyThatAreReplayedOneByOneKeepTheirOrder(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	b := setup(t)
	for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 2, 0}, {2, 0, 3, 1}} {
		for _, queue := range []string{"empty", "with a follower", "that gets a follower meanwhile"} {
			t.Run(fmt.Sprint(order, " into a queue ", queue), func(t *testing.T) {
				pgtest.Exec(t, b.Pool, "truncate holdfast.letter, holdfast.letter_action, holdfast.stored, holdfast.inbox")
				var ids []int64
				for i := range order {
					ids = append(ids, rows.Dead(t, b.Pool, "billing", "k", fmt.Sprint(i)))
				}
				want := "0 1 2 3"
				if queue == "with a follower" {
					b.follower(t, "f")
					want += " f"
				}
				for n, i := range order {
					b.replay(t, dlq.Filter{IDs: []int64{ids[i]}}, 1)
					if n == 0 && queue == "that gets a follower meanwhile" {
						b.follower(t, "f")
						want += " f"
					}
				}
				if got := pgtest.Text(t, b.Pool, queueOfK); got != want {
					t.Errorf("the queue is %q, want %q", got, want)
				}
			})
		}
	}
}

func TestOrder_AThousandLettersOfOneKeyFindTheirPlaces(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	b := setup(t)
	b.follower(t, "f")
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash)
		select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', 'k', now(), '', sha256('') from generate_series(1, 1000) n`)
	b.replay(t, dlq.Filter{}, 1000)
	if n := pgtest.Count(t, b.Pool, `select count(*) from (select letter, lag(letter) over (order by place) as before, row_number() over (order by place) as n from holdfast.stored) q
		where letter < before or (letter is null) <> (n = 1001)`); n != 0 {
		t.Errorf("%d letters are out of order", n)
	}
}

// A consumer may take the head of a queue as soon as it is there: so an earlier letter has to be there first.
func TestOrder_AnEarlierLetterOfAKeyIsNeverThereLater(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		rows.Dead(t, b.Pool, "billing", "k", fmt.Sprint(i))
	}
	if _, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann", Rate: 200}); err != nil {
		t.Fatal(err)
	}
	if got := pgtest.Text(t, b.Pool, "select string_agg(event_id, ' ' order by xmin::text::bigint, place) from holdfast.stored"); got != "0 1 2 3 4" {
		t.Errorf("the letters were stored in the order %q", got)
	}
}

func TestOrder_LettersOfTheRelayGoIntoTheLogInTheirOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		rows.Dead(t, b.Pool, "", "k", fmt.Sprint(i))
	}
	b.replay(t, dlq.Filter{}, 5)
	if got := pgtest.Text(t, b.Pool, "select string_agg(id || '=' || letter, ' ' order by seq) from holdfast.event"); got != "0=1 1=2 2=3 3=4 4=5" {
		t.Errorf("the log says %q", got)
	}
}

func TestOrder_ALimitBoundsAReplay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		rows.Dead(t, b.Pool, "billing", "k", fmt.Sprint(i))
	}
	if n, err := b.d.Replay(t.Context(), dlq.Filter{Limit: 2}, dlq.ReplayOptions{DryRun: true}); n != 2 || err != nil {
		t.Errorf("a dry run counts %d, want 2: %v", n, err)
	}
	b.replay(t, dlq.Filter{Limit: 2}, 2)
	if got := pgtest.Text(t, b.Pool, queueOfK); got != "0 1" {
		t.Errorf("the queue is %q", got)
	}
	b.replay(t, dlq.Filter{}, 3)
}

func TestOrder_AReplayDoesNotChaseTheLettersThatItCauses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "", "e")
	pgtest.Exec(t, b.Pool, `create function again() returns trigger language plpgsql as $$ begin
		insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, hash)
		select 'inbox', 'billing', 'again', gen_random_uuid(), 's', 't', 'orders', '', now(), '' from holdfast.installation where (select count(*) from holdfast.letter) < 50;
		return null; end $$`)
	pgtest.Exec(t, b.Pool, "create trigger again after insert on holdfast.letter_action for each row execute function again()")
	b.replay(t, dlq.Filter{}, 1)
}

func TestOrder_ALetterWhoseEventWaitsAlreadyStaysOpenAndTheOthersGo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rows.Dead(t, b.Pool, "billing", "k", "e")
	b.follower(t, "e") // the same event, taken in once more
	waiting, other := int64(1), rows.Dead(t, b.Pool, "billing", "k", "other")
	n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
	if n != 1 || whyNot(err) != "waiting" {
		t.Errorf("replayed %d: %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, fmt.Sprintf("select string_agg(state, ' ' order by id) from holdfast.letter where id in (%d, %d)", waiting, other)); got != "open replaying" {
		t.Errorf("the letters are %s", got)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action"); n != 1 {
		t.Errorf("%d actions are recorded, want 1", n)
	}
}

func TestOrder_ALetterWithoutItsPayloadIsNotReplayed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	large, other := rows.Dead(t, b.Pool, "billing", "k", "large"), rows.Dead(t, b.Pool, "billing", "k", "other")
	pgtest.Exec(t, b.Pool, fmt.Sprintf(`update holdfast.letter set payload = null, headers = '{"%s": "300"}' where id = %d`, wire.HeaderValueLeftOut, large))
	n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"})
	if n != 1 || whyNot(err) != "left-out" {
		t.Errorf("replayed %d: %v", n, err)
	}
	if got := pgtest.Text(t, b.Pool, fmt.Sprintf("select string_agg(state, ' ' order by id) from holdfast.letter where id in (%d, %d)", large, other)); got != "open replaying" {
		t.Errorf("the letters are %s", got)
	}
	if err := b.d.Edit(t.Context(), large, []byte("value"), "ann", ""); err != nil {
		t.Fatal(err)
	}
	if n, err := b.d.Replay(t.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Errorf("replayed %d with its payload: %v", n, err)
	}
}

// Whoever replays a key in parts, while the first letter is still there, must find room for every one between.
func TestOrder_AHundredLettersOfOneKeyFindTheirPlacesBetweenTwoThatWait(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	b := setup(t)
	b.follower(t, "f")
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, event_id, source, type, topic, key, time, payload, hash)
		select 'inbox', 'billing', 'r', n::text, 's', 't', 'orders', 'k', now(), '', sha256('') from generate_series(1, 100) n`)
	b.replay(t, dlq.Filter{IDs: []int64{1, 100}}, 2)
	b.replay(t, dlq.Filter{Key: "k"}, 98)
	if n := pgtest.Count(t, b.Pool, `select count(*) from (select letter, row_number() over (order by place) as n from holdfast.stored) q where letter is distinct from nullif(n, 101)`); n != 0 {
		t.Errorf("%d letters are out of order", n)
	}
}

// An error that names another cause than the true one sends a person to the wrong event.
func TestOrder_ALetterWhosePlaceIsTakenIsNotSaidToWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := rows.Dead(t, b.Pool, "billing", "k", "e")
	b.replay(t, dlq.Filter{}, 1)
	pgtest.Exec(t, b.Pool, "update holdfast.stored set event_id = 'another'") // which no replay does
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'open'")
	n, err := b.d.Replay(t.Context(), dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"})
	if n != 0 || err == nil || whyNot(err) != "" {
		t.Errorf("replayed %d: %v", n, err)
	}
}
