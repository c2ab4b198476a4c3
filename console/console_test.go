package console_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/find"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// browser is a user with cookies.
type browser struct {
	t   *testing.T
	url string
	*http.Client
}

type bundle struct {
	*pgtest.DB
	url  string
	user console.User
	err  error
}

func setup(t *testing.T, change func(*console.Config)) *bundle {
	t.Helper()
	b := &bundle{DB: migrated.New(t), user: console.User{Name: "ann", MayChange: true, SeesPayload: true}}
	config := console.Config{Prefix: "/ops/holdfast", Logger: slog.New(slog.DiscardHandler), UserFunc: func(*http.Request) (console.User, error) { return b.user, b.err }}
	if change != nil {
		change(&config)
	}
	b.url = serve(t, b.Pool, config)
	return b
}

// serve mounts a console, and returns its address.
func serve(t *testing.T, pool *pgxpool.Pool, config console.Config) string {
	t.Helper()
	c, err := console.New(pool, config)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(config.Prefix+"/", c)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + config.Prefix
}

func (b *bundle) browser(t *testing.T) browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return browser{t, b.url, &http.Client{Jar: jar}}
}

// read returns the body of an answer, which must have the status.
func (b browser) read(status int, response *http.Response, err error) string {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if response.StatusCode != status {
		b.t.Fatalf("%s %s is answered with %d, want %d:\n%s", response.Request.Method, response.Request.URL, response.StatusCode, status, body)
	}
	if got := response.Header.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
		b.t.Errorf("%s has the policy %q", response.Request.URL, got)
	}
	return string(body)
}

func (b browser) get(status int, path string) string {
	b.t.Helper()
	response, err := b.Get(b.url + path)
	return b.read(status, response, err)
}

func (b browser) post(status int, path string, form url.Values) string {
	b.t.Helper()
	response, err := b.PostForm(b.url+path, form)
	return b.read(status, response, err)
}

var (
	tokenField  = regexp.MustCompile(`name="token" value="([^"]+)"`)
	quotedValue = regexp.MustCompile(`="[^"]*"`)
	anyField    = regexp.MustCompile(`type="hidden" name="([^"]+)" value="([^"]*)"`)
)

// token is the token of a page's form.
func (b browser) token(page string) string {
	b.t.Helper()
	found := tokenField.FindStringSubmatch(page)
	if found == nil {
		b.t.Fatalf("there is no form on\n%s", page)
	}
	return found[1]
}

// sure sends the form of a page that asks whether the user is sure.
func (b browser) sure(status int, path, page string) string {
	b.t.Helper()
	form := url.Values{}
	for _, field := range anyField.FindAllStringSubmatch(page, -1) {
		form.Set(field[1], html.UnescapeString(field[2]))
	}
	if form.Get("sure") != "yes" {
		b.t.Fatalf("it does not ask:\n%s", page)
	}
	return b.post(status, path, form)
}

// overview is the overview once it has a text: what is shown may be a second old.
func (b *browser) overview(has string) (page string) {
	b.t.Helper()
	wait.Until(b.t, "the overview says "+has, func() bool {
		page = b.get(200, "/")
		return strings.Contains(page, has)
	})
	return page
}

func wantIn(t *testing.T, page string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("%q is not on the page\n%s", text, page)
		}
	}
}

// letter makes an open dead letter of billing with this payload.
func (b *bundle) letter(t *testing.T, id, payload string) int64 {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result) values ('billing', 'shop', $1, 'orders', sha256($2::bytea), now(), 'dead')`, id, []byte(payload))
	return pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		values ('inbox', 'billing', 'the bank is closed', 'f', $1, 'shop', 'order.placed', 'orders', 'k', now(), '{"trace": "a header"}', $2::bytea, sha256($2::bytea), 2, array[E'the bank is closed\nand its door']) returning id`, id, []byte(payload))
}

func (b *bundle) parked(t *testing.T) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		values (3, 'gone', 'k', nextval('holdfast.parked_place'), 'topic', 'infinity', 'p1', 'shop', 'order.placed', now()), (3, 'gone', 'k', nextval('holdfast.parked_place'), 'follows', 'infinity', 'p2', 'shop', 'order.placed', now())`)
}

func (b *bundle) stored(t *testing.T) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ('mail', 'shop', 's1', 'orders', '', 'stored'), ('mail', 'shop', 's2', 'orders', '', 'stored')`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, errors)
		values ('mail', 'orders', 'k', 1, 'shop', 's1', 'order.placed', now(), '', now() + interval '1 hour', now() - interval '3 hours', '{"no such mailbox"}'),
		       ('mail', 'orders', 'k', 2, 'shop', 's2', 'order.placed', now(), '', 'infinity', now(), '{}')`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('mail', 'order.placed', 'n', now() + interval '1 hour')`)
}

func TestConsole_TheOverviewSaysWhatWaits(t *testing.T) {
	t.Parallel()
	var failure error
	b := setup(t, func(c *console.Config) {
		c.EndsFunc = func(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
			return map[source.TopicPartition]int64{{Topic: "orders", Partition: 0}: 110, {Topic: "orders", Partition: 1}: 20, {Topic: "bills", Partition: 0}: 7}, failure
		}
	})
	b.letter(t, "e1", "{}")
	b.parked(t)
	b.stored(t)
	pgtest.Exec(t, b.Pool, "update holdfast.parked set first_at = now() - interval '5 hours' where id = 'p1'")
	pgtest.Exec(t, b.Pool, "update holdfast.lane set owner = 'relay-1', lease_until = now() + interval '1 hour' where lane <> 3")
	pgtest.Exec(t, b.Pool, "insert into holdfast.relay (name, seen_until, trouble) values ('relay-1', now() + interval '1 hour', 'it is away')")
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_position (consumer, topic, partition, position, held) values
		('mail', 'orders', 0, 100, null), ('mail', 'orders', 1, 18, 'its offset is out of range'), ('mail', 'bills', 0, 7, null)`)
	if err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "x", Key: "k", Time: time.Now().Add(-4 * time.Hour)})
	}); err != nil {
		t.Fatal(err)
	}
	user := b.browser(t)
	page := user.get(200, "/")
	wantIn(t, page, "<b>1</b> of 8 lanes without a relay", "<b>1</b> running</p>", "<b>1</b> relay gets no answer from the broker", "<b>4h</b> oldest unpublished event, of 1 lane<",
		"<b>2</b> waiting</a>, the oldest for 5h</p>", "<b>1</b> topic held", `origin=inbox"><b>2</b> waiting</a>`, "<b>1</b> open</a>", ">nobody</td>", "relay-1", `<li class="bad"><h2>Log</h2>`, `<li class="bad"><h2>Relays</h2>`, `<li class="bad"><h2>Topics</h2>`, `<li class="bad"><h2>Dead letters</h2>`, `<li class=""><h2>Consumers</h2>`, "<b>12</b> offsets not consumed",
		`href="/ops/holdfast/waiting?consumer=mail"`, `href="/ops/holdfast/letters?consumer=billing"`, ">3h<", "3, 1 held", `title="bills: 0, orders: 12">12<`,
		// The list of holdfast status comes first.
		`<h2 id="needs-head">Needs a person</h2>`, `<li>consumer billing has 1 open dead letter: <code><span>holdfast</span> <span>dlq</span> <span>list</span> <span>--consumer</span> <span>billing</span></code> <a href="/ops/holdfast/letters?consumer=billing&amp;origin=inbox">Dead letters</a></li>`,
		"<li>consumer mail holds partition 1 of topic orders: its offset is out of range: <code>", "<li>topic gone is missing, or the relay may not write to it: create it or grant the rights; 1 event waits for it. If it will not come back: holdfast waiting give-up --help <a href=\"/ops/holdfast/waiting?origin=relay&amp;topic=gone\">Waiting</a></li>",
		`its offset is out of range: <code><span>holdfast</span> <span>status</span> <span>--brokers</span> <span>HOST:PORT</span></code> <a href="#consumers-of">Consumers</a></li>`, ` <a href="#lanes-of">Lanes</a></li>`)
	if strings.Index(page, "Needs a person") > strings.Index(page, "of 8 lanes") {
		t.Error("what needs a person is not first")
	}
	needs, _, _ := strings.Cut(page[strings.Index(page, `id="needs"`):], "</section>")
	for _, m := range regexp.MustCompile(`<a href="([^"]*)"`).FindAllStringSubmatch(needs, -1) {
		if id, here := strings.CutPrefix(m[1], "#"); here && strings.Contains(page, `id="`+id+`"`) {
			continue
		}
		user.get(200, strings.TrimPrefix(html.UnescapeString(m[1]), "/ops/holdfast"))
	}
	if strings.Contains(page, "The log grows") {
		t.Error("the log is said to grow")
	}
	redirected, err := http.Get(b.url)
	if got := b.browser(t).read(200, redirected, err); !strings.Contains(got, "Overview") {
		t.Errorf("without the last slash it is\n%s", got)
	}
	failure = errors.New("no broker answers")
	// An EndsFunc and a Publisher may say anything: their texts are for those who see payloads.
	wantIn(t, user.overview("the lag could not be read: no broker answers"), "so the lag of consumers is not known: no broker answers", `gets no answer from the broker: <span class="small">it is away</span>`,
		`<td class="text" data-l="Held by">broker: it is away</td>`, "the network: it is away: <code>")
	b.user.SeesPayload = false
	page = user.get(200, "/")
	wantIn(t, page, "the lag could not be read: the log of the console says why", "so the lag of consumers is not known: the log of the console says why", "<b>1</b> relay gets no answer from the broker</p>",
		`<td class="text" data-l="Held by">broker: its log says why</td>`, "the network: its log says why: <code>")
	for _, text := range []string{"no broker answers", "it is away"} {
		if strings.Contains(page, text) {
			t.Errorf("%q is on the page of a user who sees no payload\n%s", text, page)
		}
	}
	b.user.SeesPayload = true
	wantIn(t, user.get(200, "/"), "the lag could not be read: no broker answers", "the network: it is away: <code>")
}

// A row leads to what is there, and nowhere if nothing is.
func TestConsole_ARowOfAConsumerLeadsToWhatItHas(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.letter(t, "e1", "{}")
	b.stored(t)
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('ledger', 'orders', 0, 3)")
	for _, p := range []string{"('mail', '', '')", "('ledger', 'orders', 'k')", "('', 'orders', '')"} {
		pgtest.Exec(t, b.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) select p.*, 'ann', 'r' from (values "+p+") p")
	}
	page := b.browser(t).get(200, "/")
	wantIn(t, page, `title="mail"><a href="/ops/holdfast/waiting?consumer=mail">mail</a><a class="small more" href="/ops/holdfast/paused">paused</a></td>`,
		`title="billing"><a href="/ops/holdfast/letters?consumer=billing">billing</a></td>`, `title="ledger">ledger</td>`, "<h2>Topics</h2>\n<p><b>–</b> published a second</p>", "handled or stored a second</p>")
}

// The list knows whether a relay runs and what has a lane's row locked. The table knows neither.
func TestConsole_OnlyTheListSaysWhatToDoAboutALane(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		return outbox.Write(t.Context(), tx, holdfast.Event{Topic: "orders", Type: "x", Key: "k"})
	}); err != nil {
		t.Fatal(err)
	}
	const noRelay, aRelayRuns = " has events and no owner: start a relay", " has events and no owner, although a relay runs"
	user := b.browser(t)
	user.overview(noRelay)
	pgtest.Exec(t, b.Pool, "insert into holdfast.relay (name, seen_until) values ('relay-1', now() + interval '1 hour')")
	page := user.overview(aRelayRuns)
	if n := strings.Count(page, ">nobody</td>"); n != 8 || strings.Contains(page, noRelay) {
		t.Errorf("%d lanes have nobody, want 8 without a cure of their own\n%s", n, page)
	}
}

func TestConsole_TheOverviewMissesTheNodesOfAConsumer(t *testing.T) {
	b := setup(t, nil)
	user := b.browser(t)
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('hooks', 'a', 'n', now() + interval '110 seconds'), ('ledger', 'a', 'n', now() - interval '11 minutes')`)
	page := user.get(200, "/")
	wantIn(t, page, ">hooks</td>", `<td class="n" data-l="Nodes">1</td>`, ">ledger</td>", "start one")
	if n := strings.Count(page, ": start one</span>"); n != 1 {
		t.Errorf("%d consumers have no node, want 1", n)
	}
}

func TestConsole_TheOverviewShowsBackfills(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	if page := user.get(200, "/"); strings.Contains(page, "Backfills") || !strings.Contains(page, "Nothing needs a person.") || strings.Contains(page, `class="bad"`) {
		t.Errorf("of a new database it is\n%s", page)
	}
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_backfill (consumer, node, began_at, partitions, partitions_left, done, remaining, per_second)
		values ('read-model-2', 'n', now() - interval '1 minute', 8, 5, 12000, 38000, 200)`)
	wantIn(t, user.overview("Backfills</h2>"), ">read-model-2</td>", ">12000<", ">50000<", "3 of 8", ">200<", ">3min</td>", ">runs</td>")
	for set, state := range map[string]string{
		"waits = '9 events wait'":                "waits: 9 events wait",
		"told_at = now() - interval '1 minute'":  "no node runs it",
		"ended_at = now(), error = 'stopped'":    "ended early: stopped",
		"ended_at = now(), done = 1, waits = ''": "done",
	} {
		pgtest.Exec(t, b.Pool, "update holdfast.consumer_backfill set told_at = now(), ended_at = null, error = null, waits = null")
		pgtest.Exec(t, b.Pool, "update holdfast.consumer_backfill set "+set)
		user.overview(">" + state + "</td>")
	}
	pgtest.Exec(t, b.Pool, "update holdfast.consumer_backfill set ended_at = now(), error = 'a broker says it'")
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position, held) values ('read-model-2', 'orders', 0, 3, 'a source says it')")
	wantIn(t, user.overview("holds partition 0 of topic orders: a source says it"), ">ended early: a broker says it</td>")
	b.user.SeesPayload = false
	page := user.get(200, "/")
	wantIn(t, page, "holds partition 0 of topic orders: the log of its node says why", ">ended early: the log of its node says why</td>")
	if strings.Contains(page, "says it") {
		t.Errorf("a user who sees no payload reads\n%s", page)
	}
}

// What handlers need and is away is red in the way of events, and named on the overview, on the pages of its consumer and where an event is looked for.
func TestConsole_WhatHandlersNeedAndIsAwayIsNamed(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	pgtest.Exec(t, b.Pool, `insert into holdfast.consumer_type (consumer, type, node, seen_until, needs) select c, 'charge', 'n', now() + interval '2 minutes', '{stripe}' from unnest('{billing,crm}'::text[]) c`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at) values ('billing', 'orders', 'k', 1, 's', 'e1', 'charge', now(), '', now())`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.dependency (consumer, name, away, since, until, error) values ('billing', 'stripe', true, now() - interval '2 minutes', now() + interval '10 minutes', E'no <answer>\nsecret')`)
	const red, flow, row = `<li class="bad"><h2>Consumers</h2>`, "<b>1</b> dependency is away", `<span class="small more">stripe is away</span>`
	page := user.overview("Dependencies</h2>")
	wantIn(t, page, red, flow, row, ">away; the next try is in ", ">no &lt;answer&gt;<", "Nothing needs a person.", `/waiting/list?consumer=billing&amp;why=dependency">1</a>`)
	if strings.Contains(page, "secret") || strings.Count(page, row) != 1 {
		t.Errorf("it says more than the first line, or more than once:\n%s", page)
	}
	for _, path := range []string{"/waiting?consumer=billing", "/waiting/list?consumer=billing", "/waiting/list?consumer=billing&why=dependency"} {
		wantIn(t, user.get(200, path), ">away; the next try is in ", ">no &lt;answer&gt;<", ">dependency</td>")
	}
	for _, path := range []string{"/waiting", "/waiting?consumer=crm", "/waiting/list"} {
		if page := user.get(200, path); strings.Contains(page, "the next try") {
			t.Errorf("%s names what is away of another:\n%s", path, page)
		}
	}
	wantIn(t, user.get(200, "/find?id=e1"), "it waits for stripe, which is away since ", "; last error: no &lt;answer&gt;")

	pgtest.Exec(t, b.Pool, "update holdfast.dependency set since = now() - interval '10 minutes'")
	wantIn(t, user.overview("dependency stripe of consumer billing has been away for"), red, `<a href="/ops/holdfast/waiting?consumer=billing&amp;origin=inbox">Waiting</a>`)
	pgtest.Exec(t, b.Pool, "update holdfast.dependency set until = now() - interval '6 minutes'")
	if page := user.overview("was away; nothing has tried it for 6m"); strings.Contains(page, red) || strings.Contains(page, row) || strings.Contains(page, "has been away for") {
		t.Errorf("of what nothing tries it says\n%s", page)
	}
	pgtest.Exec(t, b.Pool, "update holdfast.dependency set away = false")
	if page := user.overview(">there</td>"); strings.Contains(page, red) || strings.Contains(user.get(200, "/waiting?consumer=billing"), ">there</td>") {
		t.Errorf("of what is back it says\n%s", page)
	}
}

// Every page says where it is, how old it is, and how much waits elsewhere.
func TestConsole_APageSaysWhereItIsAndHowMuchWaits(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	wait.Until(t, "nothing waits, and nothing is counted", func() bool { return !strings.Contains(user.get(200, "/paused"), `class="count`) })
	id := b.letter(t, "e1", "{}")
	b.parked(t)
	b.stored(t)
	pgtest.Exec(t, b.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) values ('mail', '', '', 'ann', 'r')")
	for path, want := range map[string]struct{ title, current string }{
		"/":                              {"(5) Overview", "/"},
		"/letters":                       {"Dead letters", "/letters"},
		"/letters/list?consumer=billing": {"Dead letters: consumer billing", "/letters"},
		fmt.Sprint("/letters/", id):      {fmt.Sprint("Dead letter ", id), "/letters"},
		"/waiting":                       {"Waiting events", "/waiting"},
		"/waiting/list":                  {"Waiting events: all", "/waiting"},
		"/paused":                        {"Paused", "/paused"},
		"/find?id=e1":                    {"Where is e1?", ""},
	} {
		var page string
		wait.Until(t, path+" counts", func() bool { // for a second it shows what was counted before
			page = user.get(200, path)
			return strings.Contains(page, `class="count`) && !strings.Contains(page, ">?</b>")
		})
		wantIn(t, page, "<title>"+want.title+" · holdfast</title>", `Dead letters <b class="count bad">1</b>`, `Waiting <b class="count">4</b>`, `Paused <b class="count bad">1</b>`, "As of ", "data-every=", "data-live")
		here := 0
		if want.current != "" {
			wantIn(t, page, `<a href="/ops/holdfast`+want.current+`" aria-current="page">`)
			here = 1
		}
		if n := strings.Count(page, `aria-current="page"`); n != here {
			t.Errorf("%s: %d pages are the current one, want %d", path, n, here)
		}
	}
}

// A letter is found by its kind of failure, not by how often it was tried. The reason has of an error what RedactErrorFunc leaves of it;
// lists show no more of an error than that.
func TestConsole_ListsShowTheReasonAndTheKindOfFailure(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.letter(t, "e1", "{}")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set reason = 'it failed 4 times', fingerprint = 'order.placed: a string where an int# is wanted'")
	user := b.browser(t)
	wantIn(t, user.get(200, "/letters"), `">order.placed: a string where an int# is wanted</a>`, "it failed 4 times")
	page := user.get(200, "/letters/list")
	wantIn(t, page, `>it failed 4 times</span><span class="small lines" title="order.placed: a string where an int# is wanted">order.placed: a string where an int# is wanted</span>`)
	if strings.Contains(page+user.get(200, "/letters"), "the bank is closed") {
		t.Errorf("what the handler said is in a list\n%s", page)
	}
	wantIn(t, user.get(200, fmt.Sprint("/letters/", id)), `<span class="print">order.placed: a string where an int# is wanted</span>`, "Others of this kind")
}

func TestConsole_SomeLettersAreSelectedAndPagesTurnBothWays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		select 'inbox', 'billing', 'r', 'f', 'e' || n, 'shop', 'order.placed', 'orders', '', now(), '{}', '{}', sha256(n::text::bytea), 1, '{}' from generate_series(1, 250) n`)
	user := b.browser(t)
	turn := func(page, to string) string {
		t.Helper()
		link := regexp.MustCompile(`rel="` + to + `" href="/ops/holdfast([^"]*)"`).FindStringSubmatch(page)
		if link == nil {
			t.Fatalf("there is no %s page\n%s", to, page)
		}
		return user.get(200, html.UnescapeString(link[1]))
	}
	first := user.get(200, "/letters/list?consumer=billing")
	second := turn(first, "next")
	third := turn(second, "next")
	for i, page := range []string{first, second, third, turn(third, "prev"), turn(turn(third, "prev"), "prev")} {
		event := []string{"e1", "e101", "e201", "e101", "e1"}[i]
		if !strings.Contains(page, ">"+event+"</a>") || strings.Contains(page, `rel="prev"`) != (event != "e1") || strings.Contains(page, `rel="next"`) != (event != "e201") || !strings.Contains(page, "consumer billing") {
			t.Errorf("page %d does not begin with %s\n%s", i, event, page)
		}
	}
	ids := regexp.MustCompile(`name="ids" value="(\d+)"`).FindAllStringSubmatch(second, -1)
	if len(ids) != 100 {
		t.Fatalf("%d letters can be selected, want 100", len(ids))
	}
	form := url.Values{"token": {user.token(second)}, "which": {"selected"}, "does": {"discard"}, "consumer": {"billing"}, "reason": {"test orders"}}
	wantIn(t, user.post(422, "/letters", form), "0 dead letters are selected: select 1 to 100 of them, or choose all of the filter")
	form["ids"] = []string{ids[3][1], ids[7][1]}
	wantIn(t, user.sure(200, "/letters", user.post(200, "/letters", form)), "Discarded 2 dead letters", `Dead letters <b class="count bad">248</b>`, "letters "+ids[3][1]+", "+ids[7][1])
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'discarded' and event_id in ('e104', 'e108')"); n != 2 {
		t.Errorf("%d of those selected are discarded, want 2", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'discarded'"); n != 2 {
		t.Errorf("%d letters are discarded, want 2", n)
	}
	for _, state := range []string{"", "any", "discarded"} {
		page := user.get(200, "/letters/list?consumer=billing&state="+state)
		if acts := strings.Contains(page, "all open ones of this filter: consumer billing</label>"); acts != (state != "discarded") || strings.Contains(page, `type="checkbox"`) != acts {
			t.Errorf("state %q: letters can be changed: %t\n%s", state, acts, page)
		}
	}
	wantIn(t, user.get(200, "/letters/list?after=100&trail=x%26state%3Dany,7"), `rel="prev" href="/ops/holdfast/letters/list?&amp;after=7">`)
	wantIn(t, user.get(200, "/letters/list?after=100"), `rel="prev" href="/ops/holdfast/letters/list?&amp;after=0"`)
	// An error leads back to where the user was, and nowhere else.
	host := strings.TrimSuffix(b.url, "/ops/holdfast")
	for from, back := range map[string]string{
		b.url + "/letters/list?consumer=billing&after=7": `<a href="/ops/holdfast/letters/list?consumer=billing&amp;after=7">Back</a>`,
		b.url + "//evil.example/x":                       `<a href="/ops/holdfast/evil.example/x">Back</a>`,
		host + "/other":                                  "",
		"https://evil.example/ops/holdfast/letters":      "",
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/letters/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Referer", from)
		response, err := user.Do(request)
		if page := user.read(404, response, err); !strings.Contains(page, back) || (back == "") == strings.Contains(page, ">Back<") {
			t.Errorf("from %s it leads back by %q:\n%s", from, back, page)
		}
	}
	form["ids"] = []string{"1,x"}
	wantIn(t, user.post(422, "/letters", form), `ids has &#34;x&#34;: it must be a number`)
}

func TestConsole_GroupsAreSortedAndFiltersOfferWhatIsKnown(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for n, of := range map[string]int{"many": 3, "late": 1} {
		for range of {
			id := b.letter(t, fmt.Sprint(n, of, time.Now().UnixNano()), "{}")
			pgtest.Exec(t, b.Pool, "update holdfast.letter set fingerprint = $1, last_at = now() + ($2 = 'late')::int * interval '1 hour' where id = $3", n, n, id)
		}
	}
	b.stored(t)
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('mail', 'bills', 0, 7)")
	user := b.browser(t)
	before := func(page, a, b string) {
		t.Helper()
		if i, j := strings.Index(page, a), strings.Index(page, b); i < 0 || j < i {
			t.Errorf("%s is not before %s\n%s", a, b, page)
		}
	}
	const many, late = `">many</a>`, `">late</a>`
	page := user.get(200, "/letters?consumer=billing")
	before(page, many, late)
	wantIn(t, page, `<option value="mail">`, `<option value="bills">`, `<option value="order.placed">`, `aria-sort="descending">Letters ↓`, `href="/ops/holdfast/letters?consumer=billing&amp;sort=last"`)
	page = user.get(200, "/letters?consumer=billing&sort=last")
	before(page, late, many)
	wantIn(t, page, `aria-sort="descending">Last ↓`)
	before(user.get(200, "/letters?sort=nonsense"), many, late)
	// No link and no form widens the filter without a word.
	page = user.get(200, "/letters?consumer=billing&key=k&source=shop&origin=inbox&fingerprint=many")
	wantIn(t, page, `letters/list?consumer=billing&amp;fingerprint=many&amp;key=k&amp;origin=inbox&amp;source=shop&amp;topic=orders&amp;type=order.placed`,
		`<input type="hidden" name="origin" value="inbox">`, `<input type="hidden" name="source" value="shop">`, `<input type="hidden" name="fingerprint" value="many">`, `name="key" value="k"`)
	wantIn(t, user.get(200, "/waiting?sort=oldest"), `aria-sort="descending">Oldest ↓`)
}

// slow is a change of many letters, each of which takes a while.
func slow(t *testing.T, b *bundle, letters int) {
	t.Helper()
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		select 'inbox', 'billing', 'r', 'f', 'e' || n, 'shop', 'order.placed', 'orders', '', now(), '{}', '{}', sha256(n::text::bytea), 1, '{}' from generate_series(1, $1::integer) n`, letters)
	pgtest.Exec(t, b.Pool, `create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.6); if new.event_id = 'e' || tg_argv[0] then raise 'that one' using errcode = 'XX001'; end if; return new; end $$`)
}

// What takes longer than a second says how far it is while it runs, in an answer that the browser shows as it comes.
func TestConsole_AChangeThatTakesLongSaysHowFarItIs(t *testing.T) {
	skip.InShort(t, "its changes take 3 s each")
	t.Parallel()
	b := setup(t, nil)
	slow(t, b, 10)
	user := b.browser(t)
	discard := func(sure string) string {
		t.Helper()
		return user.post(200, "/letters", url.Values{"token": {user.token(user.get(200, "/letters/list"))}, "which": {"all"}, "does": {"discard"}, "reason": {"r"}, "sure": {sure}})
	}
	pgtest.Exec(t, b.Pool, "create trigger slow before update on holdfast.letter for each row execute function slow('6')")
	page := discard("yes")
	wantIn(t, page, "<h1>Discarding 10 dead letters …</h1>", " of 10 so far, about ", `max="10">`, "<h1>Discarded 5 dead letters, then it failed</h1>", `role="alert">Something went wrong: `, "that one", "</html>")
	pgtest.Exec(t, b.Pool, "drop trigger slow on holdfast.letter; create trigger slow before update on holdfast.letter for each row execute function slow('none')")
	page = discard("yes")
	wantIn(t, page, "<h1>Discarding 5 dead letters …</h1>", " of 5 so far", "<h1>Discarded 5 dead letters</h1>", "</html>")
	if n := strings.Count(page, "<html"); n != 1 {
		t.Errorf("%d pages are sent as one", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'discarded'"); n != 10 {
		t.Errorf("%d are discarded, want 10", n)
	}
}

func TestConsole_AnEventIsFoundInOneSearch(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.letter(t, "e1", "{}")
	b.stored(t)
	page := b.browser(t).get(200, "/find?id=+e1+")
	open := fmt.Sprintf(`It is <a href="/ops/holdfast/letters/%d">dead letter %d</a>, which is open: decide what becomes of it.`, id, id)
	wantIn(t, page, open, "consumer billing has given it up", fmt.Sprintf(`href="/ops/holdfast/letters/%d"`, id), "the bank is closed")
	wantIn(t, b.browser(t).get(200, "/find?id=s2"), "an earlier event of its key has to go first", `href="/ops/holdfast/waiting/list?consumer=mail&amp;key=k&amp;topic=orders"`)
	wantIn(t, b.browser(t).get(200, "/find?id=nowhere"), "This database does not know it: "+find.Nowhere, "no node handled its type")
	pgtest.Exec(t, b.Pool, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body, body_hash, result_ref, owner, expires_at)
		values ('principal:ann', 'POST /payments', 'key 1', '', 1, 'complete', 201, '{}', 'the secret', '', 'payment 7', gen_random_uuid(), now() + interval '1 day')`)
	request := b.browser(t).get(200, "/find?id=key+1")
	wantIn(t, request, "was answered with 201", "payment 7", "operation POST /payments, principal:ann")
	if strings.Contains(request, "the secret") || strings.Contains(request, "does not know it") {
		t.Errorf("the page of a key is\n%s", request)
	}
	wantIn(t, b.browser(t).get(422, "/find?id=a%00b"), "<h1>Check what you entered</h1>", "no event has such an id")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'discarded' where id = $1", id)
	if page := b.browser(t).get(200, "/find?id=e1"); strings.Contains(page, "which is open") {
		t.Errorf("of a letter that is discarded it says\n%s", page)
	}
	b.browser(t).get(422, "/find?id="+strings.Repeat("a", 256))
}

// An inbox of the service says what its handlers could not read.
func TestConsole_AnEditIsCheckedByTheConsumerThatWillGetIt(t *testing.T) {
	t.Parallel()
	in, err := inbox.New(migrated.New(t).Pool, inbox.Config{Consumer: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	inbox.On(in, "order.placed", func(context.Context, pgx.Tx, struct{ Amount int }, holdfast.Event) error { return nil })
	b := setup(t, func(c *console.Config) {
		c.CheckFuncs = map[string]func(context.Context, holdfast.Event) error{"billing": in.CheckPayload}
	})
	id := b.letter(t, "e1", `{"amount":"1"}`)
	user := b.browser(t)
	path := fmt.Sprint("/letters/", id)
	page := user.get(200, path)
	wantIn(t, page, `name="raw"`)
	edit := url.Values{"token": {user.token(page)}, "version": {"1"}, "payload": {`{"amount":"2"}`}, "reason": {"a wrong amount"}}
	wantIn(t, user.post(422, path+"/edit", edit), "consumer billing could not read the new payload: ", "field &#34;Amount&#34;: a string where an int is wanted", "tick the box", `<details id="edit" open>`, "&#34;amount&#34;:&#34;2&#34;", `value="a wrong amount"`)
	edit.Set("payload", `{"amount":`)
	wantIn(t, user.post(422, path+"/edit", edit), "is not JSON")
	edit.Set("payload", `{"amount":"2"}`)
	edit.Set("raw", "yes")
	wantIn(t, user.post(200, path+"/edit", edit), "version 2")
	edit.Set("version", "2")
	edit.Del("raw")
	edit.Set("payload", `{"amount":2}`)
	wantIn(t, user.post(200, path+"/edit", edit), "version 3")
	// The dead letters of others, and those of a relay, are checked by nobody.
	pgtest.Exec(t, b.Pool, "update holdfast.letter set consumer = 'mail' where id = $1", id)
	edit.Set("version", "3")
	edit.Set("payload", `{"amount":"3"}`)
	wantIn(t, user.post(200, path+"/edit", edit), "version 4")
}

// A check that is broken can be passed by: the box that stores the payload as it is keeps it from being called.
func TestConsole_ACheckThatPanicsKeepsNobodyFromAnEdit(t *testing.T) {
	t.Parallel()
	calls := 0
	b := setup(t, func(c *console.Config) {
		c.CheckFuncs = map[string]func(context.Context, holdfast.Event) error{"billing": func(context.Context, holdfast.Event) error { calls++; panic("SECRET") }}
	})
	path := fmt.Sprint("/letters/", b.letter(t, "e1", `{"amount":1}`))
	user := b.browser(t)
	edit := url.Values{"token": {user.token(user.get(200, path))}, "version": {"1"}, "payload": {`{"amount":2}`}, "reason": {"a wrong amount"}}
	page := user.post(422, path+"/edit", edit)
	wantIn(t, page, "consumer billing could not read the new payload: its check panicked: a value of type string. Correct it, or tick the box")
	if strings.Contains(page, "SECRET") {
		t.Errorf("what it panicked with is on the page\n%s", page)
	}
	edit.Set("raw", "yes")
	wantIn(t, user.post(200, path+"/edit", edit), "version 2")
	if calls != 1 {
		t.Errorf("it was called %d times, want once", calls)
	}
}

func TestConsole_LettersAreReadEditedReplayedAndDiscarded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first, second, third := b.letter(t, "e1", `{"amount":1,"to":"shop"}`), b.letter(t, "e2", "not JSON"), b.letter(t, "e3", "\xff\x00")
	user := b.browser(t)
	wantIn(t, user.get(200, "/letters"), `fingerprint=f`, ">3</td>", "the bank is closed")
	wantIn(t, user.get(200, "/letters/list?consumer=billing"), ">e1</a>", ">e2</a>", ">e3</a>", "consumer billing")
	wantIn(t, user.get(200, "/letters/list?consumer=mail"), "There are none.")
	wantIn(t, user.get(422, "/letters/list?state=lost"), "it must be open, replaying")
	wantIn(t, user.get(200, fmt.Sprint("/letters/", third)), "ff 00")
	wantIn(t, user.get(404, "/letters/99999"), "no such letter")
	wantIn(t, user.get(404, "/letters/x"), "there is no such dead letter")

	// An edit, and what it changed.
	path := fmt.Sprint("/letters/", first)
	page := user.get(200, path)
	wantIn(t, page, "and its door", "a header", "&#34;amount&#34;: 1")
	edit := url.Values{"token": {user.token(page)}, "version": {"1"}, "payload": {"{\r\n  \"amount\": 2,\r\n  \"to\": \"shop\"\r\n}"}, "reason": {"a wrong amount"}}
	page = user.post(200, path+"/edit", edit) // it is redirected to the letter
	wantIn(t, page, "version 2", "by ann", "a wrong amount", "-   &#34;amount&#34;: 1,", "&#43;   &#34;amount&#34;: 2,", "    &#34;to&#34;: &#34;shop&#34;")
	if got := pgtest.Count(t, b.Pool, `select count(*) from holdfast.letter where id = $1 and convert_from(payload, 'UTF8') = '{"amount":2,"to":"shop"}'`, first); got != 1 {
		t.Error("the payload is not as it was edited")
	}
	wantIn(t, user.post(409, path+"/edit", edit), "it was edited since: it is at version 2, and you edited version 1")
	broken := url.Values{"token": edit["token"], "version": {"2"}, "payload": {"{\r\n  \"amount\": 2,\r\n}"}, "reason": {"typed in haste"}}
	// One that is refused is there again, as it was typed, with what is wrong with it.
	refused := user.post(422, path+"/edit", broken)
	wantIn(t, refused, "<title>Not saved: Dead letter ", `<details id="edit" open>`, `role="alert" id="unsaved">It is not saved: `, "is not JSON: line 3, column 1: invalid character", "tick the box",
		">\n{\n  &#34;amount&#34;: 2,\n}</textarea>", `name="reason" value="typed in haste"`, `name="version" value="2"`)
	if strings.Contains(refused, "data-every") {
		t.Error("a refresh would take away what was typed")
	}
	wantIn(t, user.get(200, path), "version 2", `name="raw"`, `<details id="edit"><summary>`, `name="reason" required`)
	wantIn(t, user.get(200, path+"/edit"), fmt.Sprint("<title>Dead letter ", first), `<details id="edit"><summary>`) // loaded again, without a form
	user.get(404, "/letters/x/edit")
	broken.Set("raw", "yes")
	wantIn(t, user.post(200, path+"/edit", broken), "version 3", "typed in haste")
	edit.Set("reason", " ")
	user.post(409, path+"/edit", edit) // an editor that is shown again has the version of now, so what is older is refused first
	edit.Set("version", "3")
	wantIn(t, user.post(422, path+"/edit", edit), "the reason has 0 bytes: it must have 1 to 1000. It is kept with the edit", "&#34;amount&#34;: 2,\n  &#34;to&#34;")
	edit.Set("reason", strings.Repeat("r", 1001))
	wantIn(t, user.post(422, path+"/edit", edit), "the reason has 1001 bytes")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'discarded' where id = $1", first)
	wantIn(t, user.post(409, path+"/edit", url.Values{"token": edit["token"], "version": {"3"}, "payload": {"{"}, "reason": {""}}), "it is discarded") // it has no editor
	pgtest.Exec(t, b.Pool, "update holdfast.letter set state = 'open' where id = $1", first)

	// A replay asks first, and tells how many.
	form := url.Values{"token": edit["token"], "does": {"replay"}, "ids": {fmt.Sprint(first)}, "reason": {"the amount is right"}}
	page = user.post(200, "/letters", form)
	wantIn(t, page, "<h1>Replay 1 dead letter?</h1>", "the amount is right")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 3 {
		t.Errorf("%d are open before the user is sure", n)
	}
	wantIn(t, user.sure(200, "/letters", page), "<h1>Started the replay of 1 dead letter</h1>", fmt.Sprintf(`<a href="/ops/holdfast/letters/%d">Dead letter %d</a>`, first, first))
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'replay' and by = 'ann' and reason = 'the amount is right' and letter = $1", first); n != 1 {
		t.Error("the replay is not recorded")
	}
	form.Set("reason", "")
	wantIn(t, user.post(422, "/letters", form), "the reason has 0 bytes")
	form.Set("does", "delete")
	wantIn(t, user.post(422, "/letters", form), "it must be replay or discard")

	// All of a filter are discarded.
	page = user.post(200, "/letters", url.Values{"token": edit["token"], "does": {"discard"}, "which": {"all"}, "consumer": {"billing"}, "key": {"k"}, "reason": {"test orders"}})
	wantIn(t, page, "<h1>Discard 2 dead letters?</h1>", "consumer billing, key k")
	wantIn(t, user.sure(200, "/letters", page), "<h1>Discarded 2 dead letters</h1>", "consumer billing, key k")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'discarded' and id in ($1, $2)", second, third); n != 2 {
		t.Errorf("%d are discarded", n)
	}
	wantIn(t, user.get(200, "/letters"), "There are none.")
	b.letter(t, "e4", "{}")
	page = user.post(200, "/letters", url.Values{"token": edit["token"], "does": {"discard"}, "which": {"all"}, "consumer": {"billing"}, "state": {"any"}, "reason": {"only what is open"}})
	wantIn(t, page, "<h1>Discard 1 dead letter?</h1>", "consumer billing")
	wantIn(t, user.get(200, "/letters/list?state=any"), "discarded", "replaying")
}

// Enter after Enter does nothing that cannot be undone.
func TestConsole_TwoEntersEndNothing(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	id := b.letter(t, "e1", "{}")
	b.stored(t)
	b.parked(t)
	pgtest.Exec(t, b.Pool, "insert into holdfast.scheduled (lane, due_at, id, source, type, topic, key, time) values (0, now() + interval '1 hour', 'd1', 'shop', 'x', 'bills', 'k', now())")
	pgtest.Exec(t, b.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) values ('mail', '', '', 'ann', 'r')")
	user := b.browser(t)
	token := user.token(user.get(200, fmt.Sprint("/letters/", id)))
	focus := regexp.MustCompile(`<(\w+)[^>]* autofocus>`)
	for _, c := range []struct {
		does, path, on string
		of             url.Values
	}{
		{"replay", "/letters", "button", url.Values{"ids": {fmt.Sprint(id)}}},
		{"discard", "/letters", "a", url.Values{"ids": {fmt.Sprint(id)}}},
		{"retry", "/waiting", "button", url.Values{"consumer": {"mail"}}},
		{"give-up", "/waiting", "a", url.Values{"origin": {"relay"}, "topic": {"gone"}}},
		{"discard", "/waiting", "a", url.Values{"consumer": {"mail"}}},
		{"redirect", "/waiting", "a", url.Values{"origin": {"relay"}, "topic": {"gone"}, "to": {"orders"}}},
		{"cancel", "/waiting", "a", url.Values{"topic": {"bills"}}},
		{"pause", "/paused", "button", url.Values{"topic": {"orders"}}},
		{"resume", "/paused", "button", url.Values{"consumer": {"mail"}}},
	} {
		c.of.Set("token", token)
		c.of.Set("does", c.does)
		c.of.Set("reason", "r")
		page := user.post(200, c.path, c.of)
		if found := focus.FindAllStringSubmatch(page, -1); len(found) != 1 || found[0][1] != c.on {
			t.Errorf("%s: the focus is on %q, want one %s\n%s", c.does, found, c.on, page)
		}
	}
}

func TestConsole_ALetterSaysWhenItFailedAndWhereItWasRead(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	path := fmt.Sprint("/letters/", b.letter(t, "e1", "{}"))
	for _, c := range []struct {
		set, says string
	}{
		{`partition = null, "offset" = null`, ""},
		{`partition = -1, "offset" = -1`, ""},
		{`partition = 0, "offset" = -1`, ""},
		{`partition = 0, "offset" = 0`, "<dt>Partition, offset</dt><dd>0, 0</dd>"},
	} {
		pgtest.Exec(t, b.Pool, `update holdfast.letter set first_at = '2026-01-02 03:04:05Z', last_at = '2026-01-02 06:07:08Z', `+c.set)
		page := user.get(200, path)
		wantIn(t, page, "<dd>2, first failed 2026-01-02 03:04:05 UTC, last given up 2026-01-02 06:07:08 UTC</dd>", c.says)
		if c.says == "" && strings.Contains(page, "Partition, offset") {
			t.Errorf("%s: it was read from a partition\n%s", c.set, page)
		}
	}
}

func TestConsole_WhatWaitsInAConsumerIsListedAndChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.stored(t)
	user := b.browser(t)
	wantIn(t, user.get(200, "/waiting"), "2 events, grouped by place, topic and reason", "failed", "no such mailbox", "/ops/holdfast/waiting/list?consumer=mail&amp;origin=inbox&amp;topic=orders&amp;why=failed")
	page := user.get(200, "/waiting/list?consumer=mail")
	wantIn(t, page, "no such mailbox", "failed", "behind-event", ">s1<", ">s2<", "All of this filter: consumer mail")
	if strings.Contains(page, "Redirect to") {
		t.Error("what waits in a consumer can be redirected")
	}
	if heads := user.get(200, "/waiting/list?consumer=mail&heads=yes"); strings.Contains(heads, ">s2<") || !strings.Contains(heads, ">s1<") {
		t.Errorf("the heads are\n%s", heads)
	}
	wantIn(t, user.get(200, "/waiting?consumer=mail&heads=yes"), "heads=yes")
	wantIn(t, user.get(200, "/waiting/list?origin=inbox"), `<a href="/ops/holdfast/waiting?origin=inbox">Choose a consumer, to retry, give up or discard what waits in it</a>`)
	form := url.Values{}
	for _, field := range anyField.FindAllStringSubmatch(user.get(200, "/waiting/list?consumer=mail&heads=yes&why=failed"), -1) { // the form of the page has all of its filter
		form.Set(field[1], html.UnescapeString(field[2]))
	}
	form.Set("does", "discard")
	form.Set("reason", "only heads")
	wantIn(t, user.post(200, "/waiting", form), "Discard 1 waiting event?", "consumer mail, only the first of each key, why failed")
	wantIn(t, user.get(200, "/waiting/list?consumer=mail&why=paused"), "Nothing waits.")
	wantIn(t, user.get(422, "/waiting/list?consumer=mail&why=tired"), "why is &#34;tired&#34;: it must be one of")
	form = url.Values{"token": {user.token(page)}, "does": {"retry"}, "consumer": {"mail"}, "reason": {"the mailbox is there"}}
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Asked for a retry of 1 waiting event")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where event_id = 's1' and next_at <= now()"); n != 1 {
		t.Error("the head is not due")
	}
	form.Set("does", "discard")
	form.Set("event", "s1")
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Discarded 1 waiting event")
	form.Set("does", "give-up")
	form.Set("event", "s2")
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Gave up 1 waiting event")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored_action where by = 'ann' and reason = 'the mailbox is there'"); n != 3 {
		t.Errorf("%d actions are recorded, want 3", n)
	}
	wantIn(t, user.post(409, "/waiting", form), "nothing like that waits")
	form.Del("consumer")
	wantIn(t, user.post(422, "/waiting", form), "consumer is empty: it must name whose events are meant")
	form.Set("consumer", "mail")
	form.Set("does", "drop")
	wantIn(t, user.post(422, "/waiting", form), "it must be retry, give-up, discard, redirect or cancel")
}

// Who reads the groups sees which types no node handles, and gets to their events.
func TestConsole_WhatHasNoHandlerIsGroupedByItsType(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.stored(t)
	user := b.browser(t)
	if page := user.get(200, "/waiting"); strings.Contains(page, "<th>Type</th>") {
		t.Errorf("without such events there is an empty column\n%s", page)
	}
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) select 'mail', 'shop', 'u' || n, 'orders', '', 'stored' from generate_series(1, 3) n`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select 'mail', 'orders', 'u' || n, 10 + n, 'shop', 'u' || n, case when n < 3 then 'order.split' else 'order.<i>' end, now(), '', now() from generate_series(1, 3) n`)
	page := user.get(200, "/waiting")
	const list = `href="/ops/holdfast/waiting/list?consumer=mail&amp;origin=inbox&amp;topic=orders&amp;type=`
	wantIn(t, page, "5 events,", "<th>Type</th>", list+`order.split&amp;why=no-handler">2</a>`, list+`order.%3Ci%3E&amp;why=no-handler">1</a>`,
		`<td data-l="Why">no-handler</td><td class="w" data-l="Type" title="order.split">order.split</td>`, `title="order.&lt;i&gt;">order.&lt;i&gt;</td>`,
		`<td data-l="Why">failed</td><td class="w" data-l="Type" title="">–</td>`)
	if listed := user.get(200, "/waiting/list?consumer=mail&origin=inbox&topic=orders&type=order.split&why=no-handler"); !strings.Contains(listed, ">u1<") || !strings.Contains(listed, ">u2<") || strings.Contains(listed, ">u3<") {
		t.Errorf("the list of one type is\n%s", listed)
	}
	wantIn(t, user.get(200, "/"), `<a class="small more" href="/ops/holdfast/waiting?consumer=mail&amp;why=no-handler">3 without a handler</a>`)
}

func TestConsole_WhatWaitsInRelaysIsListedAndChanged(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	wantIn(t, user.get(200, "/waiting"), "Nothing waits.")
	b.parked(t)
	wantIn(t, user.get(200, "/waiting?origin=relay"), "gone", "topic", "behind-event")
	wantIn(t, user.get(200, "/waiting/list?origin=relay&topic=gone&why=topic"), ">p1<", `<a href="/ops/holdfast/waiting/list?origin=relay&amp;topic=gone">Show everything of topic gone in relays, to retry, redirect, give up or discard it</a>`)
	// From the group on, and from a list of anything, links lead to where something can be done.
	for path, want := range map[string]string{
		"/waiting":                                        `<a href="/ops/holdfast/waiting/list?origin=relay&amp;topic=gone">1</a>`,
		"/waiting?key=k&type=order.placed":                `<a href="/ops/holdfast/waiting/list?key=k&amp;origin=relay&amp;topic=gone&amp;type=order.placed">1</a>`,
		"/waiting/list?origin=relay":                      `<a href="/ops/holdfast/waiting?origin=relay">Choose a topic in relays, to retry, redirect, give up or discard what waits of it</a>`,
		"/waiting/list?type=order.placed":                 `<a href="/ops/holdfast/waiting?type=order.placed">Choose a consumer, or a topic in relays, to change what waits there</a>`,
		"/waiting/list?topic=gone&key=k&why=topic":        `<a href="/ops/holdfast/waiting/list?key=k&amp;origin=relay&amp;topic=gone">Show everything of key k of topic gone in relays, to retry, redirect, give up or discard it</a>`,
		"/waiting/list?origin=relay&topic=gone&heads=yes": ">Show everything of topic gone in relays, ",
	} {
		wantIn(t, user.get(200, path), want)
	}
	page := user.get(200, "/waiting/list?origin=relay&topic=gone")
	wantIn(t, page, ">p1<", ">p2<", "Redirect to", "All of this filter: in the relays, topic gone")
	form := url.Values{"token": {user.token(page)}, "does": {"retry"}, "origin": {"relay"}, "topic": {"gone"}, "reason": {"it is back"}}
	wantIn(t, user.post(200, "/waiting", form), "<h1>Retry ")
	form.Set("does", "redirect")
	form.Set("to", "orders")
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Redirected 2 waiting events", "in the relays, topic gone")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.event where topic = 'orders'"); n != 2 {
		t.Errorf("%d are redirected", n)
	}
	form.Set("to", "gone")
	wantIn(t, user.post(422, "/waiting", form), "it must be another topic")
	form.Set("does", "give-up")
	b.parked(t)
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Gave up 2 waiting events")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open' and origin = 'relay'"); n != 2 {
		t.Errorf("%d are dead letters", n)
	}
	wantIn(t, user.post(409, "/waiting", form), "nothing like that waits")
	form.Set("type", "order.placed")
	wantIn(t, user.post(422, "/waiting", form), "type is set: in relays changes go by topic and key only")
}

func TestConsole_ScheduledEventsAreListedAndCancelled(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	wantIn(t, user.get(200, "/waiting/list?why=scheduled"), "Nothing waits.")
	if err := pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
		for _, id := range []string{"s1", "s2", "s3"} {
			if err := outbox.Write(t.Context(), tx, holdfast.Event{ID: id, Topic: map[bool]string{true: "bills", false: "orders"}[id == "s3"], Type: "x", Key: "k", NotBefore: time.Now().Add(5*time.Hour + time.Minute)}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wantIn(t, user.get(200, "/waiting/list?why=scheduled"), ">s1<", ">s3<", "in 5h", `<a href="/ops/holdfast/waiting?why=scheduled">Choose a topic, to cancel what is scheduled of it</a>`)
	wantIn(t, user.get(200, "/waiting?why=scheduled"), `<a href="/ops/holdfast/waiting/list?origin=relay&amp;topic=orders&amp;why=scheduled">2</a>`)
	page := user.get(200, "/waiting/list?why=scheduled&topic=orders")
	wantIn(t, page, ">s1<", ">s2<", "All of this filter: topic orders, why scheduled")
	if strings.Contains(page, ">s3<") {
		t.Error("the filter does not filter")
	}
	form := url.Values{"token": {user.token(page)}, "does": {"cancel"}, "topic": {"orders"}, "reason": {"the sale is off"}}
	wantIn(t, user.sure(200, "/waiting", user.post(200, "/waiting", form)), "Cancelled 2 waiting events", "topic orders")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.scheduled"); n != 1 {
		t.Errorf("%d are scheduled, want 1", n)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where by = 'ann' and reason = 'the sale is off'"); n != 2 {
		t.Errorf("%d actions are recorded, want 2", n)
	}
	form.Del("topic")
	wantIn(t, user.post(422, "/waiting", form), "a cancel needs a topic")
	form.Set("why", "scheduled")
	wantIn(t, user.post(422, "/waiting", form), "a cancel needs a topic")
}

func TestConsole_TopicsConsumersAndKeysArePausedAndResumed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	page := user.get(200, "/paused")
	wantIn(t, page, "Nothing is paused.")
	token := user.token(page)
	pauses := []url.Values{{"topic": {"orders"}}, {"consumer": {"mail"}}, {"consumer": {"mail"}, "topic": {"orders"}, "key": {"k"}}}
	things := []string{"topic", "consumer", "key"}
	for i, p := range pauses {
		p.Set("token", token)
		p.Set("does", "pause")
		p.Set("reason", "the bank is closed")
		asked := user.post(200, "/paused", p)
		if unknown := strings.Contains(asked, "knows no consumer mail"); unknown != p.Has("consumer") {
			t.Errorf("that nobody is called mail is said: %t", unknown)
		}
		wantIn(t, user.sure(200, "/paused", asked), "Paused 1 "+things[i])
		wantIn(t, user.post(200, "/paused", p), "Pause 0 "+things[i], "There is nothing to do.")
	}
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 't', 'n', now())")
	if page := user.post(200, "/paused", url.Values{"token": {token}, "does": {"pause"}, "consumer": {"billing"}, "reason": {"r"}}); strings.Contains(page, "knows no consumer") {
		t.Error("a consumer that is there is not known")
	}
	page = user.get(200, "/paused")
	wantIn(t, page, "the relays", "mail", "the bank is closed", "ann")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.pause where by = 'ann'"); n != 3 {
		t.Fatalf("%d are paused, want 3", n)
	}
	for i, p := range pauses {
		p.Set("does", "resume")
		wantIn(t, user.sure(200, "/paused", user.post(200, "/paused", p)), "Resumed 1 "+things[i])
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.pause"); n != 0 {
		t.Errorf("%d are still paused", n)
	}
	for _, wrong := range []url.Values{{}, {"key": {"k"}}, {"topic": {"orders"}, "consumer": {"mail"}}, {"topic": {"orders"}, "key": {"k"}}} {
		wrong.Set("token", token)
		wrong.Set("does", "pause")
		wrong.Set("reason", "r")
		wantIn(t, user.post(422, "/paused", wrong), "it must be a topic, a consumer, or a key with its topic and consumer")
	}
	wantIn(t, user.post(422, "/paused", url.Values{"token": {token}, "does": {"stop"}, "topic": {"orders"}, "reason": {"r"}}), "it must be pause or resume")
}

func TestConsole_AFormGivesAPayloadBackAsItWas(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	box := regexp.MustCompile(`(?s)<textarea name="payload"[^>]*>\n(.*?)</textarea>`)
	edit := func(status int, id int64, change func(shown string) string) (offered bool) {
		path := fmt.Sprint("/letters/", id)
		page := user.get(200, path)
		shown := box.FindStringSubmatch(page)
		if shown == nil {
			shown = []string{"", ""}
		} else {
			offered = true
		}
		sent := strings.ReplaceAll(change(html.UnescapeString(shown[1])), "\n", "\r\n") // as a browser does
		user.post(status, path+"/edit", url.Values{"token": {user.token(page)}, "version": {"1"}, "payload": {sent}, "reason": {"r"}})
		return offered
	}
	stored := func(id int64, want string) {
		t.Helper()
		if pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where id = $1 and payload = $2", id, []byte(want)) != 1 {
			t.Errorf("letter %d has another payload than %q", id, want)
		}
	}
	same := func(shown string) string { return shown }
	two := func(shown string) string { return strings.Replace(shown, "1", "2", 1) }
	for i, c := range []struct {
		payload string
		change  func(string) string
		want    string
	}{
		{`{"amount": 1,"to":"shop"}`, same, `{"amount": 1,"to":"shop"}`},
		{`{"amount": 1,"to":"shop"}`, two, `{"amount": 2,"to":"shop"}`},
		{"amount 1\r\nto shop\r\n", two, "amount 2\r\nto shop\r\n"},
		{"\namount 1\nto shop", two, "\namount 2\nto shop"},
	} {
		id := b.letter(t, fmt.Sprint("e", i), c.payload)
		edit(200, id, c.change)
		stored(id, c.want)
	}
	for i, payload := range []string{"{\"a\":\"\xff1\"}", "1\xff", "1\x00", "1\r\n2\n", "1\r2"} {
		id := b.letter(t, fmt.Sprint("f", i), payload)
		if edit(422, id, two) {
			t.Errorf("%q is offered for editing as text", payload)
		}
		stored(id, payload)
	}
}

// Who plants a cookie, or knows the token of another user, has no token that the console takes.
func TestConsole_ATokenIsMadeByTheConsoleOnly(t *testing.T) {
	t.Parallel()
	secret := bytes.Repeat([]byte{7}, 32)
	b := setup(t, func(c *console.Config) { c.Secret = secret })
	id := b.letter(t, "e1", `{}`)
	path := fmt.Sprint("/letters/", id)
	send := func(to, cookie, token string) int {
		form := url.Values{"token": {token}, "does": {"discard"}, "ids": {fmt.Sprint(id)}, "reason": {"r"}, "sure": {"yes"}}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to+"/letters", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.AddCookie(&http.Cookie{Name: "holdfast_console", Value: cookie})
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	cookieOf := func(user browser) string {
		at, err := url.Parse(b.url + "/")
		if err != nil {
			t.Fatal(err)
		}
		return user.Jar.Cookies(at)[0].Value
	}
	mallory := b.browser(t)
	b.user.Name = "mallory"
	planted := mallory.token(mallory.get(200, path))
	b.user.Name = "ann"
	ann := b.browser(t)
	token := ann.token(ann.get(200, path))
	own := strings.Repeat("a", 24)
	for name, made := range map[string][2]string{
		"a self-made cookie as its token": {own, own},
		"another's cookie and token":      {cookieOf(mallory), planted},
		"a token of another cookie":       {own, token},
		"the cookie as its token":         {cookieOf(ann), cookieOf(ann)},
	} {
		if got := send(b.url, made[0], made[1]); got != 403 {
			t.Errorf("%s: answered with %d, want 403", name, got)
		}
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 1 {
		t.Error("the letter is changed")
	}
	for name, shared := range map[string][]byte{"of another secret": nil, "of the same secret": secret} {
		node, err := console.New(b.Pool, console.Config{Prefix: "/ops/holdfast", Secret: shared, Logger: slog.New(slog.DiscardHandler), UserFunc: func(*http.Request) (console.User, error) { return b.user, nil }})
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewServer(node)
		t.Cleanup(server.Close)
		want := http.StatusForbidden
		if shared != nil {
			want = http.StatusOK // after the redirect to what was done
		}
		if got := send(server.URL+"/ops/holdfast", cookieOf(ann), token); got != want {
			t.Errorf("a node %s answers with %d, want %d", name, got, want)
		}
	}
}

// A stranger, a user who only reads, one who sees no payload, a form of another site.
func TestConsole_OnlyWhoMayChangesOrSees(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	id := b.letter(t, "e1", `{"card":"the secret"}`)
	path := fmt.Sprint("/letters/", id)
	user := b.browser(t)
	token := user.token(user.get(200, path))
	replay := url.Values{"token": {token}, "does": {"replay"}, "ids": {fmt.Sprint(id)}, "reason": {"r"}, "sure": {"yes"}}

	for name, change := range map[string]func(url.Values){
		"without a token":      func(f url.Values) { f.Del("token") },
		"with another token":   func(f url.Values) { f.Set("token", strings.Repeat("A", len(token))) },
		"with an empty token":  func(f url.Values) { f.Set("token", "") },
		"from another browser": nil,
	} {
		form, from := url.Values{}, user
		for k, v := range replay {
			form[k] = v
		}
		if change == nil {
			from = b.browser(t)
		} else {
			change(form)
		}
		if page := from.post(403, "/letters", form); !strings.Contains(page, "is not from here") {
			t.Errorf("%s: %s", name, page)
		}
	}
	for header, value := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.url+"/letters", strings.NewReader(replay.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		request.Header.Set(header, value)
		response, err := user.Do(request)
		wantIn(t, user.read(403, response, err), "another origin")
	}

	user.post(200, path+"/edit", url.Values{"token": {token}, "version": {"1"}, "payload": {`{"card":"another secret"}`}, "reason": {"r"}})
	wantIn(t, user.get(200, path), "the secret", "another secret")
	pgtest.Exec(t, b.Pool, "update holdfast.letter set headers = '[\"the secret\", \"a header\"]' where id = $1", id)
	wantIn(t, user.get(200, path), "Not as it is in the database: headers")
	b.user.SeesPayload = false
	page := user.get(200, path)
	wantIn(t, page, "Some of it is not shown as it is in the database.")
	if strings.Contains(page, "secret") || strings.Contains(page, "and its door") || strings.Contains(page, "a header") || strings.Contains(page, "textarea") {
		t.Errorf("a user who sees no payload sees\n%s", page)
	}
	user.post(403, path+"/edit", url.Values{"token": {token}, "version": {"2"}, "payload": {"{}"}, "reason": {"r"}})
	b.user.MayChange = false
	for _, page := range []string{user.get(200, path), user.get(200, "/letters/list"), user.get(200, "/waiting/list?consumer=billing"), user.get(200, "/waiting")} {
		if strings.Contains(page, `method="post"`) {
			t.Errorf("a user who only reads has a form:\n%s", page)
		}
	}
	for _, to := range []string{"/letters", "/waiting", "/paused", path + "/edit"} {
		wantIn(t, user.post(403, to, replay), "you may not change anything")
	}
	b.err = errors.New("no such session: abc")
	for _, from := range []string{"/", path, "/find?id=e1", "/letters", "/waiting", "/waiting/list", "/nowhere"} {
		if page := user.get(403, from); strings.Contains(page, "no such session") || strings.Contains(page, "bank") {
			t.Errorf("a stranger reads %s\n%s", from, page)
		}
	}
	b.err, b.user = nil, console.User{MayChange: true}
	user.get(403, "/")
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action <> 'edit' or reason <> 'r'"); n != 0 {
		t.Errorf("%d things were done", n)
	}
}

// What an event, an error or a user says is text, wherever it stands.
func TestConsole_HostileTextsAreShownAsText(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>'`
	b.user.Name = evil
	id := pgtest.Count(t, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		values ('inbox', $1, $1, $1, $1, $1, $1, 'orders', $1, now(), jsonb_build_object($1::text, $1::text), convert_to($1, 'UTF8'), '', 2, array[$1]) returning id`, evil)
	pgtest.Exec(t, b.Pool, `insert into holdfast.letter_action (letter, action, by, reason, payload, hash, version) values ($1, 'edit', $2, $2, convert_to($2, 'UTF8'), '', 1)`, id, evil)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, errors) values ($1, 'orders', $1, 1, $1, $1, $1, now(), '', array[$1])`, evil)
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, errors) values (3, 'gone', $1, 1, 'topic', 'infinity', $1, $1, $1, now(), array[$1])`, evil)
	pgtest.Exec(t, b.Pool, "update holdfast.lane set owner = $1, lease_until = now() + interval '1 hour'", evil)
	user := b.browser(t)
	q := url.QueryEscape(evil)
	seen := 0
	for _, path := range []string{"/", "/letters", "/letters/list", fmt.Sprint("/letters/", id), "/waiting", "/waiting/list?consumer=" + q, "/waiting/list?origin=relay&topic=gone", "/find?id=" + q, "/letters/list?key=" + q + "&type=" + q} {
		page := user.get(200, path)
		if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") || regexp.MustCompile(`<[^>]*onerror`).MatchString(quotedValue.ReplaceAllString(page, "")) {
			t.Errorf("%s has\n%s", path, page)
		}
		seen += strings.Count(page, "&lt;script&gt;alert")
	}
	if seen < 30 {
		t.Errorf("the text is shown %d times only", seen)
	}
	page := user.post(200, "/letters", url.Values{"token": {user.token(user.get(200, "/letters/list"))}, "does": {"discard"}, "which": {"all"}, "key": {evil}, "reason": {evil}})
	if strings.Contains(page, "<script>alert") {
		t.Errorf("the question has\n%s", page)
	}
	wantIn(t, user.sure(200, "/letters", page), "Discarded 1 dead letter")
}

func TestConsole_TheConsoleHasNoCodeInItsPages(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	page := user.get(200, "/")
	if regexp.MustCompile(`(?i)<script>|<style|\son[a-z]+=|style="|javascript:`).MatchString(page) {
		t.Errorf("the page has code or style in it:\n%s", page)
	}
	for _, found := range regexp.MustCompile(`(?:src|href)="(/ops/holdfast/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		user.get(200, strings.TrimPrefix(found[1], "/ops/holdfast"))
	}
	response, err := user.Get(b.url + "/static/console.js")
	user.read(200, response, err)
	if got := response.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/javascript") {
		t.Errorf("the script is %s, and the browser does not guess", got)
	}
	cookie := ""
	response, err = http.Get(b.url + "/")
	user.read(200, response, err)
	for _, c := range response.Cookies() {
		cookie = c.Raw
	}
	wantIn(t, cookie, "HttpOnly", "SameSite=Strict", "Path=/ops/holdfast/")
}

func TestConsole_EveryProblemOfAConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	_, err := console.New(nil, console.Config{Prefix: "ops/", Schema: "Not A Name", Secret: []byte("short")})
	for _, want := range []string{"pool is nil", "user func is nil", `prefix is "ops/"`, "secret is 5 bytes long: it must be at least 32", "Not A Name"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
}

// Who sees payloads reads why something failed. To others the page says which kind of trouble it is.
func TestConsole_AFailureIsToldToThoseWhoMayReadIt(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b := setup(t, nil)
	user := b.browser(t)
	const inTheLog = "the log of the console says why"
	fails := func(status int, sees bool, has, not string) {
		t.Helper()
		b.user.SeesPayload = sees
		for _, path := range []string{"/", "/waiting"} {
			page := user.get(status, path)
			wantIn(t, page, strings.Split(has, "|")...)
			if strings.Contains(page, not) {
				t.Errorf("%s says %q\n%s", path, not, page)
			}
		}
	}
	pgtest.Exec(t, b.Pool, "alter table holdfast.parked rename to gone")
	fails(500, false, "The schema is not what this version needs|run holdfast check: "+inTheLog, "holdfast.parked")
	fails(500, true, "The schema is not what this version needs|run holdfast check: |holdfast.parked", inTheLog)
	away, err := pgxpool.New(t.Context(), "postgres://nobody:secret@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	user.url = serve(t, away, console.Config{Logger: slog.New(slog.DiscardHandler), UserFunc: func(*http.Request) (console.User, error) { return b.user, nil }})
	for _, not := range []string{"127.0.0.1:1", "user=", "database="} {
		fails(503, false, "The database does not answer|"+inTheLog, not)
	}
	fails(503, true, "The database does not answer|127.0.0.1:1|connect", "secret")
}

func TestConsole_StepsAreShownAndForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.letter(t, "e1", "{}")
	other := b.letter(t, "e2", "{}")
	b.stored(t)
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at) values
		('billing', 'shop', 'e1', sha256('old'), 'charge', '', '{"paid": "five"}', '2026-01-01'), ('billing', 'shop', 'e1', sha256('{}'), '<b>mail', '', '"sent to ann"', '2026-01-02'),
		('mail', 'shop', 's1', '', 'send', '', '"to bob"', '2026-01-03')`)
	hash := sha256.Sum256([]byte("{}"))
	key := steps.Key("billing", "shop", "e1", hash[:], "<b>mail")
	user := b.browser(t)
	path := fmt.Sprint("/letters/", id)
	const box = `name="forget"`
	for _, from := range []string{path, "/find?id=e1"} {
		b.user.SeesPayload = true
		page := user.get(200, from)
		wantIn(t, page, "step <b>charge</b>, of another payload, done 2026-01-01", "step <b>&lt;b&gt;mail</b>, done 2026-01-02", "key "+key, "&#34;paid&#34;: &#34;five&#34;", "sent to ann")
		if n := strings.Count(page, key); n != 1 {
			t.Errorf("%s shows a step %d times", from, n)
		}
		b.user.SeesPayload = false
		page = user.get(200, from)
		wantIn(t, page, "step <b>charge</b>", "key "+key)
		if strings.Contains(page, "five") || strings.Contains(page, "sent to ann") {
			t.Errorf("on %s a user who sees no payload sees\n%s", from, page)
		}
	}
	b.user.SeesPayload = true
	if page := user.get(200, "/find?id=s1"); strings.Count(page, "step <b>send</b>") != 1 || strings.Count(page, "to bob") != 1 {
		t.Errorf("of an event that waits, and has a row in the inbox, it shows\n%s", page)
	}
	if page := user.get(200, fmt.Sprint("/letters/", other)); strings.Contains(page, box) || strings.Contains(page, "Steps that are done") {
		t.Errorf("a letter without steps has\n%s", page)
	}

	const left = "select string_agg(consumer || ' ' || name, ', ' order by consumer, name) from holdfast.inbox_step"
	page := user.get(200, path)
	wantIn(t, page, box)
	form := url.Values{"token": {user.token(page)}, "does": {"discard"}, "ids": {fmt.Sprint(id)}, "reason": {"r"}, "forget": {"yes"}}
	if page = user.post(200, "/letters", form); strings.Contains(page, "forgotten") {
		t.Errorf("a discard says\n%s", page)
	}
	form.Set("does", "replay")
	page = user.post(200, "/letters", form)
	wantIn(t, page, "Its steps are forgotten, and run again with the same keys.")
	if got := pgtest.Text(t, b.Pool, left); got != "billing <b>mail, billing charge, mail send" {
		t.Errorf("before the user is sure the steps are %s", got)
	}
	user.sure(200, "/letters", page)
	if got := pgtest.Text(t, b.Pool, left); got != "billing charge, mail send" { // that of another payload, which does not run
		t.Errorf("what is left are the steps %s", got)
	}
	wantIn(t, user.get(200, path), "r [steps forgotten: 1]")
	pgtest.Exec(t, b.Pool, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) values ('billing', 'shop', 'e2', sha256('{}'), 'charge', '', '1')`)
	form.Del("forget")
	form.Set("ids", fmt.Sprint(other))
	if page = user.post(200, "/letters", form); strings.Contains(page, "forgotten") {
		t.Errorf("a replay that keeps steps says\n%s", page)
	}
	user.sure(200, "/letters", page)
	if got := pgtest.Text(t, b.Pool, left); got != "billing charge, billing charge, mail send" {
		t.Errorf("after a replay that keeps them the steps are %s", got)
	}
}
