package browser

import (
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Somebody who is paged has an id: a key of the keyboard, the id, and the way of the event is there; then its letter, and a replay.
func TestConsole_FromAnIdToAReplayByKeyboard(t *testing.T) {
	skip.InShort(t, "it takes 16 s beside the others")
	t.Parallel()
	b := setup(t)
	id := b.letter("order-1", "k", "the bank is closed", `{"amount":1}`)
	b.open("/")
	// As a keyboard sends it: what a page prevents writes nothing.
	slash := input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithCode("Slash").WithText("/").WithWindowsVirtualKeyCode(191)
	b.do("search", slash, chromedp.KeyEvent("order-1"), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible(".way"))
	b.is("the event is found", `document.querySelector(".way").innerText.includes("the bank is closed")`)
	b.do("go to its letter", chromedp.Click(fmt.Sprintf(`.way a[href="%s"]`, pathOf(id))), chromedp.WaitVisible("pre.payload"))
	b.do("ask for a replay", chromedp.SendKeys(`input[name="reason"]`, "the bank is open"), chromedp.Click(`button[value="replay"]`), chromedp.WaitVisible("button.sure"))
	if n := b.letters("open"); n != 1 {
		t.Fatalf("%d letters are open before the user is sure", n)
	}
	b.is("the button has the focus", `document.activeElement.className === "sure"`)
	b.do("be sure", chromedp.KeyEvent(kb.Enter), chromedp.WaitNotPresent("button.sure"), chromedp.WaitVisible(".outcome"))
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action where action = 'replay' and by = 'ann' and reason = 'the bank is open'"); n != 1 {
		t.Errorf("%d replays are recorded, want 1", n)
	}

	// A discard cannot be undone: the same keys lead back, and only a key of its own does it.
	other := b.letter("order-2", "", "the bank is closed", `{}`)
	b.open(pathOf(other))
	b.do("ask for a discard", chromedp.SendKeys(`input[name="reason"]`, "test orders"), chromedp.Click(`button[value="discard"]`), chromedp.WaitVisible("button.sure"))
	b.is("the way back has the focus", `document.activeElement.textContent === "Do nothing"`)
	b.do("press Enter", chromedp.KeyEvent(kb.Enter), chromedp.WaitNotPresent("button.sure"), chromedp.WaitVisible("#act fieldset"))
	if n := b.letters("discarded"); n != 0 {
		t.Errorf("%d letters are discarded", n)
	}
	b.open("/")
	b.do("the first key of the keyboard", chromedp.KeyEvent(kb.Tab))
	b.is("it leads past the header", `document.activeElement.textContent === "Skip to the content"`)
	if w := b.warned(); len(w) > 0 {
		t.Errorf("the browser warns: %q", w)
	}
}

// hostile are texts that would run if a page took them for more than text.
var hostile = []string{
	`<script>window.hacked = "script"</script>`,
	`"><img src=x onerror="window.hacked = 'attribute'">`,
	`'><svg onload="window.hacked='svg'">`,
	`</textarea></pre><script>window.hacked = "textarea"</script>`,
	`javascript:window.hacked='link'`,
	`{{printf "hacked"}}${window.hacked="template"}`,
}

// Every text of an event may be an attacker's.
func TestConsole_HostileTextsAreShownAsTheyAre(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	t.Parallel()
	b := setup(t)
	var ids []int64
	for i, text := range hostile {
		ids = append(ids, b.letter(fmt.Sprintf("%s %d", text, i), text, text, text))
		pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, errors)
			values ($1, $1, $1, $2, $1, $1, $1, now(), '', now() + interval '1 hour', array[$1])`, text, i)
		pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, errors)
			values (0, $1, $1, $2, 'record', now() + interval '1 hour', $1, $1, $1, now(), array[$1])`, text, i)
		pgtest.Exec(t, b.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) values ($1, $1, $1, $1, $1)", text)
		pgtest.Exec(t, b.Pool, `insert into holdfast.scheduled (lane, due_at, id, source, type, topic, key, time) values (0, now() + interval '1 hour', $1, $1, $1, 'orders', $1, now())`, text)
		pgtest.Exec(t, b.Pool, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, status, headers, body_hash, result_ref, owner, expires_at)
			values ($1, $1, $1, '', 1, 'complete', 201, '{}', '', $1, gen_random_uuid(), now() + interval '1 day')`, text)
	}
	pages := []string{"/", "/letters", "/letters/list", "/waiting", "/waiting/list", "/waiting/list?why=scheduled", "/paused"}
	for i, text := range hostile {
		q := url.QueryEscape(text)
		pages = append(pages, pathOf(ids[i]), "/waiting/list?consumer="+q, "/find?id="+q, "/letters/list?topic="+q+"&key="+q)
	}
	for _, page := range pages {
		b.open(page)
		b.is(page+" ran nothing", `window.hacked === undefined`)
		b.is(page+" has only its own elements", `document.querySelectorAll("main img, main svg:not(.chart), main script, main iframe, [onerror], [onload]").length === 0`)
		b.is(page+" has only links to itself", `[...document.querySelectorAll("a[href]")].every(a => a.protocol === location.protocol && a.host === location.host)`)
		if w := b.warned(); len(w) > 0 {
			t.Errorf("%s: the browser warns: %q", page, w)
		}
	}
	b.open(pathOf(ids[0]))
	b.is("the text is there", fmt.Sprintf(`document.querySelector("pre.payload").textContent.trim() === %q`, hostile[0]))
}

// What got into a page in spite of that does nothing: no inline code, no other origin, no frame.
func TestConsole_ThePolicyOfThePagesIsKeptByTheBrowser(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	b := setup(t)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/frame" {
			fmt.Fprintf(w, `<iframe src="%s/" onload="document.title = 'loaded'"></iframe>`, html.EscapeString(b.url))
			return
		}
		w.Header().Set("Access-Control-Allow-Origin", "*")
		fmt.Fprint(w, "window.hacked = 'from elsewhere'")
	}))
	t.Cleanup(elsewhere.Close)
	b.open("/")
	for what, code := range map[string]string{
		"an inline script":       `const s = document.createElement("script"); s.textContent = "window.hacked = 'inline'"; document.body.append(s);`,
		"a script of elsewhere":  fmt.Sprintf(`const s = document.createElement("script"); s.src = %q; document.body.append(s);`, elsewhere.URL+"/x.js"),
		"an inline handler":      `const d = document.createElement("div"); d.innerHTML = '<button onclick="window.hacked = 1">x</button>'; document.body.append(d); d.firstChild.click();`,
		"a request to elsewhere": fmt.Sprintf(`fetch(%q).then(() => { window.hacked = "sent" }, () => {})`, elsewhere.URL),
	} {
		b.do(what, chromedp.Evaluate("{"+code+"}", nil))
		b.do(what, chromedp.Poll(`performance.now() > 0`, nil, chromedp.WithPollingTimeout(pageLoads)), chromedp.Sleep(200*time.Millisecond)) // sleep: it would run by now
		b.is(what+" did not run", `window.hacked === undefined`)
		if w := strings.Join(b.warned(), "; "); !strings.Contains(w, "Content Security Policy") {
			t.Errorf("%s is not blocked by the policy: %q", what, w)
		}
	}
	b.do("open a page with a frame", chromedp.Navigate(elsewhere.URL+"/frame"), chromedp.Poll(`document.title === "loaded"`, nil, chromedp.WithPollingTimeout(pageLoads)))
	if w := strings.Join(b.warned(), "; "); !strings.Contains(w, "frame-ancestors") {
		t.Errorf("the console may be put into a frame: %q", w)
	}
}

// A page of another origin sends the form of a replay from the same browser, with its cookies.
func TestConsole_AnotherSiteCannotSendAForm(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	b := setup(t)
	id := b.letter("order-1", "k", "the bank is closed", `{}`)
	b.open(pathOf(id)) // the browser has its cookie
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method="post" action="%s/letters"><input name="does" value="replay"><input name="id" value="%d"><input name="reason" value="r"><input name="sure" value="yes">
			<input name="token" value="guessed"><button id="send">send</button></form>`, html.EscapeString(b.url), id)
	}))
	t.Cleanup(elsewhere.Close)
	b.do("send the form", chromedp.Navigate(elsewhere.URL), chromedp.Click("#send"), chromedp.WaitVisible("pre"))
	b.is("it is refused", `document.body.innerText.includes("another origin")`)
	if n := b.letters("open"); n != 1 {
		t.Error("the letter was replayed")
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.letter_action"); n != 0 {
		t.Errorf("%d actions are recorded", n)
	}
}

// What changes in the database is on an open page soon, and the page says how old it is. Nobody loads it again.
func TestConsole_AnOpenPageShowsWhatIsNew(t *testing.T) {
	skip.InShort(t, "it takes 25 s beside the others")
	t.Parallel()
	b := setup(t)
	pgtest.Exec(t, b.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 3)")
	soon := chromedp.WithPollingTimeout(pageLoads)
	b.open("/")
	b.do("mark the page", chromedp.Evaluate(`window.loaded = "once"`, nil))
	b.letter("order-1", "k", "the bank is closed", `{}`)
	b.do("see the letter in the box, in the list, in the navigation and in the title", chromedp.Poll(`document.querySelector("#flow").innerText.includes("1 open")
		&& document.querySelector("#needs").innerText.includes("consumer billing has 1 open dead letter")
		&& document.querySelector("#pages").innerText.includes("Dead letters 1") && /^\([0-9]+\) Overview/.test(document.title)`, nil, soon))
	b.do("see rates", chromedp.Poll(`/^[0-9.]+ written a second/.test(document.querySelector("#flow p").innerText)
		&& /[0-9.]+ published a second/.test(document.querySelector("#flow").innerText)`, nil, soon))
	b.do("see its age", chromedp.Poll(`/^As of [0-9]+ s ago$/.test(document.querySelector("#asof").textContent)`, nil, soon))

	// What somebody does on the page stays as it is.
	b.letter("order-2", "k", "the bank is closed", `{}`)
	b.open("/letters/list")
	b.do("select one and write a reason", chromedp.Click(`input[name="ids"]`), chromedp.SendKeys(`input[name="reason"]`, "test orders"))
	b.letter("order-3", "k", "the bank is closed", `{}`)
	b.do("see the new one", chromedp.Poll(`document.querySelectorAll('input[name="ids"]').length === 3`, nil, soon))
	b.do("select all", chromedp.Click("#every"))
	b.is("all are selected", `[...document.querySelectorAll('input[name="ids"]')].every(f => f.checked)`)
	b.do("select none, and one again", chromedp.Click("#every"), chromedp.Click(`input[name="ids"]`))
	b.is("the first is selected still", `[...document.querySelectorAll('input[name="ids"]')].map(f => f.checked).join() === "true,false,false"`)
	b.is("the reason is there", `document.querySelector('input[name="reason"]').value === "test orders"`)
	b.do("discard it", chromedp.Click(`button[value="discard"]`), chromedp.WaitVisible("button.sure"), chromedp.Click("button.sure"), chromedp.WaitVisible(".outcome"))
	b.is("it says what was done", `document.querySelector(".outcome h1").textContent === "Discarded 1 dead letter"`)
	if n := b.letters("discarded"); n != 1 {
		t.Errorf("%d letters are discarded, want 1", n)
	}
	if w := b.warned(); len(w) > 0 {
		t.Errorf("the browser warns: %q", w)
	}

	// A page that cannot be refreshed does not look as if it were.
	b.open("/")
	pgtest.Exec(t, b.Pool, "alter table holdfast.parked rename to gone")
	b.do("see that it is old", chromedp.Poll(`document.querySelector("#asof.bad")?.textContent.includes("The schema is not what this version needs")`, nil, soon))
	b.is("it shows what it knew, and not as if it were so", `getComputedStyle(document.querySelector("#flow")).opacity === "0.5" && document.querySelector("#flow").innerText.includes("2 open")`)
	pgtest.Exec(t, b.Pool, "alter table holdfast.gone rename to parked")
	b.do("see that it is new", chromedp.Poll(`document.querySelector("#asof.bad") === null`, nil, soon))

	// The login has ended: the service shows its login page, or refuses. The page keeps what it showed, says so, and does not ask for ever.
	for _, status := range []int{http.StatusOK, http.StatusForbidden} {
		b.open("/")
		var asked atomic.Int64
		login := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.WriteHeader(status)
			fmt.Fprint(w, "<title>Log in</title><h1>Who are you?</h1>")
		})
		b.door.Store(&login)
		b.do("see that the login has ended", chromedp.Poll(`document.querySelector("#asof.bad")?.textContent.includes("you may not see it any more: load the page again")`, nil, soon))
		b.is("the page is as it was", `document.title.endsWith("Overview · holdfast") && document.querySelector("#flow").innerText.includes("2 open") && document.querySelector("#stale").textContent !== ""`)
		b.do("wait longer than the next time", chromedp.Sleep(7*time.Second))
		if n := asked.Load(); n != 1 {
			t.Errorf("the page was asked for %d times, want once", n)
		}
		b.door.Store(nil)
	}
}

// A page that came in parts, with the progress of a long change, shows in the end what came of it and nothing else.
func TestConsole_ALongChangeEndsWithItsOutcome(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	t.Parallel()
	b := setup(t)
	for n := range 4 {
		b.letter(fmt.Sprint("order-", n), "", "the bank is closed", `{}`)
	}
	pgtest.Exec(t, b.Pool, "create function slow() returns trigger language plpgsql as 'begin perform pg_sleep(1); return new; end'")
	pgtest.Exec(t, b.Pool, "create trigger slow before update on holdfast.letter for each row execute function slow()")
	b.open("/letters/list")
	b.do("ask", chromedp.Click(`input[value="all"]`), chromedp.SendKeys(`input[name="reason"]`, "r"), chromedp.Click(`button[value="discard"]`), chromedp.WaitVisible("button.sure"))
	b.do("be sure, and wait", chromedp.Click("button.sure"), chromedp.WaitVisible(".outcome"))
	b.is("the outcome is in place of the progress", `document.querySelector(".outcome h1").textContent === "Discarded 4 dead letters" && document.querySelectorAll(".steps p").length > 2 && document.querySelector(".steps").offsetHeight === 0`)
	if n := b.letters("discarded"); n != 4 {
		t.Errorf("%d letters are discarded, want 4", n)
	}
}

// On a phone nothing is wider than the screen but tables, which scroll by themselves. In the dark the page is dark.
func TestConsole_PagesFitAPhoneAndTheDark(t *testing.T) {
	skip.InShort(t, "it takes 16 s beside the others")
	t.Parallel()
	b := setup(t)
	long := strings.Repeat("long", 60)
	id := b.letter(long, long, long, `{"`+long+`":"`+long+`"}`)
	pgtest.Exec(t, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, errors)
		values ('billing', $1, $1, 1, $1, $1, 'order.placed', now(), '', now(), array[$1])`, long)
	pgtest.Exec(t, b.Pool, "insert into holdfast.pause (consumer, topic, key, by, reason) values ($1, $1, $1, $1, $1)", long)
	pgtest.Exec(t, b.Pool, "insert into holdfast.scheduled (lane, due_at, id, source, type, topic, key, time) values (0, now() + interval '1 hour', $1, $1, $1, $1, $1, now())", long)
	words := `[...document.querySelectorAll("td:not(.text)")].filter(e => e.innerText.includes("order.placed")).every(e => { const r = document.createRange(); r.selectNodeContents(e); return new Set([...r.getClientRects()].map(l => l.top)).size === 1; })`
	b.do("be a desk", emulation.SetDeviceMetricsOverride(1280, 740, 1, false))
	b.open("/waiting/list?consumer=billing")
	b.is("a name stays in one line", words)
	b.do("be a phone", emulation.SetDeviceMetricsOverride(360, 740, 2, true))
	for _, page := range []string{"/", "/letters", "/letters/list", pathOf(id), "/waiting", "/waiting/list?consumer=billing", "/waiting/list?origin=relay", "/waiting/list?why=scheduled", "/paused", "/find?id=" + long} {
		b.open(page)
		b.is(page+" fits", `document.documentElement.scrollWidth <= 360`)
	}
	b.open("/")
	b.is("a command breaks between its words only", `(flags => flags.length > 0 && [...Array(30).keys()].every(n => {
		document.querySelector("main").style.width = 210 + 5 * n + "px";
		return flags.every(e => { const r = document.createRange(); r.selectNodeContents(e); return new Set([...r.getClientRects()].map(l => l.top)).size === 1; });
	}))([...document.querySelectorAll(".needs code span")].filter(e => e.innerText.startsWith("--")))`)
	b.is("a command is copied as it is", `[...document.querySelectorAll(".needs code")].some(e => e.innerText === "holdfast dlq list --consumer billing")`)
	brightness := `(c => c.match(/[0-9]+/g).slice(0, 3).reduce((sum, n) => sum + Number(n), 0))(getComputedStyle(document.body).%s)`
	for scheme, is := range map[string]string{"dark": "<", "light": ">"} {
		b.do("be "+scheme, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
		b.open("/")
		b.is("nobody has chosen colours", `localStorage.getItem("holdfast-theme") === null`)
		b.is("the page is "+scheme, fmt.Sprintf(brightness, "backgroundColor")+is+fmt.Sprintf(brightness, "color"))
	}
	b.open("/")
	brightPage := fmt.Sprintf(brightness, "backgroundColor") + ">" + fmt.Sprintf(brightness, "color")
	b.do("be in the dark, and want light", emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}), chromedp.Click("#theme"))
	b.is("the page is light", brightPage)
	b.open("/letters")
	b.is("the next one is light too", brightPage+` && document.querySelector("#theme").title === "Light colours"`)
}

// manyRows are letters and waiting events with ids, names and errors as long as they are in use.
func (b *bundle) manyRows() {
	b.Helper()
	const says = "call the payment provider: POST https://payments.example/v2/charges: the provider answered with 503 Service Unavailable after 3 attempts; the circuit is open until 10:15:30, and no other region takes this merchant"
	pgtest.Exec(b, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, holds, time, headers, payload, hash, attempts, errors)
		select 'inbox', 'payment-collector', $1, 'payment.charge_requested: ' || $1, '0199c2a4-7b3e-7c55-9d41-' || lpad(n::text, 12, '0'), 'checkout', 'payment.charge_requested', 'payments.requests', '0199c2a4-7b3e-7c55-8f02-' || lpad(n::text, 12, '0'),
		       true, now(), '{}', '{}', sha256(n::text::bytea), 15, array[$1] from generate_series(1, 12) n`, says)
	pgtest.Exec(b, b.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at, first_at, attempts, errors)
		select 'payment-collector', 'payments.requests', '0199c2a4-7b3e-7c55-8f02-' || lpad(n::text, 12, '0'), n, 'checkout', '0199c2a4-7b3e-7c55-9d41-' || lpad(n::text, 12, '0'), 'payment.charge_requested', now(), '',
		       case when n % 3 = 0 then now() + interval '90 seconds' else 'infinity' end, now() - interval '100 minutes', 15, array[$1] from generate_series(1, 12) n`, says)
}

// The last columns of a list are on the screen, and what has no room in its column is cut between words or before an id's end.
func TestConsole_ListsFitADesk(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	b := setup(t)
	b.manyRows()
	b.do("be a desk", emulation.SetDeviceMetricsOverride(1280, 740, 1, false))
	for page, columns := range map[string][]string{
		"/letters":      {"Last", "Keys held"},
		"/letters/list": {"Attempts", "Last"},
		"/waiting":      {"Oldest", "Next"},
		"/waiting/list": {"Since", "Next"},
	} {
		b.open(page)
		for _, column := range columns {
			b.is(page+" shows "+column, fmt.Sprintf(`[...document.querySelectorAll("th")].find(h => h.innerText.startsWith(%q)).getBoundingClientRect().right <= 1280`, column))
		}
		b.is(page+" does not scroll", `[...document.querySelectorAll(".table")].every(e => e.scrollWidth <= e.clientWidth)`)
		b.is(page+" has errors of two lines", `[...document.querySelectorAll(".lines")].every(e => e.clientHeight <= 2 * parseFloat(getComputedStyle(e).lineHeight) + 1 && e.title.startsWith(e.textContent))`)
		b.is(page+" breaks no word", `[...document.querySelectorAll(".lines")].every(e => {
			const words = e.firstChild.data.matchAll(/[\w.-]+/g), r = document.createRange();
			return [...words].every(w => { r.setStart(e.firstChild, w.index); r.setEnd(e.firstChild, w.index + w[0].length); return new Set([...r.getClientRects()].map(l => l.top)).size === 1; });
		})`)
		b.is(page+" shows the end of each id", `[...document.querySelectorAll(".cut")].every(e => {
			const cell = e.closest("td"), r = document.createRange();
			r.selectNode(e.nextSibling);
			return cell.title === cell.textContent && r.getBoundingClientRect().right <= cell.getBoundingClientRect().right && cell.scrollWidth <= cell.clientWidth;
		})`)
	}
	b.open("/letters/list")
	b.is("an id is there to be found and copied", `document.querySelector("td[data-l=Event]").innerText === "0199c2a4-7b3e-7c55-9d41-000000000001"`)
}

// A phone has what the head of a list has: the box that selects all, and no empty card in its place.
func TestConsole_APhoneSelectsAll(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	t.Parallel()
	b := setup(t)
	b.manyRows()
	b.do("be a phone", emulation.SetDeviceMetricsOverride(390, 844, 2, true))
	b.open("/letters/list")
	b.is("it says what the box does", `document.querySelector(".every").innerText.trim() === "Select all on this page" && document.querySelector(".every").getBoundingClientRect().height > 15`)
	b.do("select all", chromedp.Click("#every", chromedp.NodeVisible))
	b.is("all are selected", `[...document.querySelectorAll('input[name="ids"]')].filter(f => f.checked).length === 12`)
	for _, page := range []string{"/", "/letters", "/letters/list", "/waiting", "/waiting/list", "/paused"} {
		b.open(page)
		b.is(page+" fits", `document.documentElement.scrollWidth <= 390`)
		b.is(page+" has no empty card", `[...document.querySelectorAll("tr")].every(e => !e.checkVisibility() || e.innerText.trim() !== "")`)
	}
	b.open("/letters/list")
	b.is("a card has the whole of an error and an id", `document.querySelector(".lines").innerText.endsWith("no other region takes this merchant") && document.querySelector(".lines").scrollHeight <= document.querySelector(".lines").clientHeight
		&& document.querySelector(".cut").offsetWidth >= document.querySelector(".cut").scrollWidth`)
}
