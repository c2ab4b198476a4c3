// Package browser holds tests of the console in a real browser: what only a browser does with its pages.
package browser

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/holdfast-go/holdfast/console"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

const (
	// browserStarts and pageLoads bound what a slow machine may take.
	browserStarts = 2 * time.Minute
	pageLoads     = time.Minute
)

// bundle is a console and a browser.
type bundle struct {
	testing.TB
	*pgtest.DB
	url string
	tab context.Context

	door atomic.Pointer[http.HandlerFunc] // answers in place of the console, if there is one

	mu       sync.Mutex
	warnings []string // of the browser: what a policy blocked, what a script threw
}

// setup starts a console of one user, who may do everything, and a browser.
func setup(t *testing.T) *bundle {
	t.Helper()
	path, err := chromium()
	if err != nil {
		skip.Without(t, "Chromium", "install it, or put it into the PATH", err)
	}
	b := &bundle{TB: t, DB: migrated.New(t)}
	c, err := console.New(b.Pool, console.Config{Logger: slog.New(slog.DiscardHandler), UserFunc: func(*http.Request) (console.User, error) {
		return console.User{Name: "ann", MayChange: true, SeesPayload: true}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if door := b.door.Load(); door != nil {
			(*door)(w, r)
			return
		}
		c.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	b.url = server.URL

	// It runs as whoever runs the tests, also as root in a container, where Chromium's sandbox does not work. It opens pages of this test.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(browserStarts),
		chromedp.Flag("disable-dev-shm-usage", true))
	allocator, stopped := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stopped)
	tab, closed := chromedp.NewContext(allocator)
	t.Cleanup(closed)
	t.Cleanup(func() { _ = chromedp.Cancel(tab) }) // waits until it has ended
	b.tab = tab
	chromedp.ListenTarget(tab, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch event := event.(type) {
		case *log.EventEntryAdded:
			b.warnings = append(b.warnings, event.Entry.Text)
		case *runtime.EventExceptionThrown:
			b.warnings = append(b.warnings, event.ExceptionDetails.Error())
		}
	})
	if err := chromedp.Run(tab, log.Enable()); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	return b
}

// chromium is where the browser is.
func chromium() (path string, err error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"} {
		if path, err = exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", err
}

// do carries out actions in the browser.
func (b *bundle) do(what string, actions ...chromedp.Action) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.tab, pageLoads)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var page string
		late, end := context.WithTimeout(b.tab, 5*time.Second)
		defer end()
		_ = chromedp.Run(late, chromedp.Evaluate("location.href + \"\\n\" + document.body.innerText", &page))
		b.Fatalf("%s: %v; the browser warns: %q; the page is\n%s", what, err, b.warned(), page)
	}
}

// open opens a page of the console.
func (b *bundle) open(path string) {
	b.Helper()
	b.do("open "+path, chromedp.Navigate(b.url+path), chromedp.WaitVisible("main"))
}

// is evaluates an expression that has to be true.
func (b *bundle) is(what, expression string) {
	b.Helper()
	var holds bool
	b.do(what, chromedp.Evaluate(expression, &holds))
	if !holds {
		b.Errorf("%s: %s is false", what, expression)
	}
}

// warned are the warnings of the browser since the last call.
func (b *bundle) warned() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := slices.Clone(b.warnings)
	b.warnings = nil
	return w
}

// letter makes an open dead letter.
func (b *bundle) letter(id, key, reason, payload string) int64 {
	b.Helper()
	return pgtest.Count(b, b.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, headers, payload, hash, attempts, errors)
		values ('inbox', 'billing', $3, 'f', $1, 'shop', 'order.placed', 'orders', $2, now(), jsonb_build_object('note', $3::text), $4::bytea, sha256($4::bytea), 2, array[$3]) returning id`, id, key, reason, []byte(payload))
}

func (b *bundle) letters(state string) int64 {
	return pgtest.Count(b, b.Pool, "select count(*) from holdfast.letter where state = $1", state)
}

func pathOf(id int64) string { return fmt.Sprint("/letters/", id) }
