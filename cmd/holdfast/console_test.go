package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestConsole_TheConsoleIsServedOnLoopbackOnly(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	for _, address := range []string{"0.0.0.0:0", ":7413", "[::]:0", "10.0.0.1:80", "example.com:80"} {
		wantStatus(t, 2, "it must be a loopback address", "console", "--listen", address)
	}
	wantStatus(t, 2, "an address and a port", "console", "--listen", "127.0.0.1")

	c := opened(t, db.DSN, consoleCmd{})
	if status, body := c.get(c.printed, ""); status != 200 || !strings.Contains(body, "lanes without") || !strings.Contains(body, "ann") {
		t.Errorf("%d: %s", status, body)
	}
	if status, body := c.get(c.printed, "evil.example:7413"); status != 403 || strings.Contains(body, "lanes without") {
		t.Errorf("for another name: %d: %s", status, body)
	}
}

// openConsole is a console that runs, and a browser.
type openConsole struct {
	*testing.T
	printed string // its address with the key
	at      string // its address
	*http.Client
}

func opened(t *testing.T, dsn string, c consoleCmd) *openConsole {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	said, out := io.Pipe()
	var errOut bytes.Buffer
	ended := make(chan error, 1)
	c.Listen, c.By = "127.0.0.1:0", "ann"
	go func() {
		defer out.Close()
		ended <- c.Run(&program.Program{Ctx: ctx, Out: out, ErrOut: &errOut, Database: program.ConnectionFlags{DatabaseURL: dsn, Schema: "holdfast"}})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	o := &openConsole{T: t, printed: strings.Fields(line)[0]}
	o.at, _, _ = strings.Cut(o.printed, "?")
	o.stranger()
	return o
}

// stranger is the browser of somebody else from now on.
func (o *openConsole) stranger() {
	jar, err := cookiejar.New(nil)
	if err != nil {
		o.Fatal(err)
	}
	o.Client = &http.Client{Jar: jar}
}

func (o *openConsole) get(at, host string) (int, string) {
	return o.send(http.MethodGet, at, host, nil)
}

func (o *openConsole) send(method, at, host string, form url.Values) (int, string) {
	o.Helper()
	request, err := http.NewRequestWithContext(o.Context(), method, at, strings.NewReader(form.Encode()))
	if err != nil {
		o.Fatal(err)
	}
	if form != nil {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if host != "" {
		request.Host = host
	}
	response, err := o.Do(request)
	if err != nil {
		o.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// Every user of the machine reaches a loopback address: without the key that was printed nothing is read and nothing is changed.
func TestConsole_TheConsoleAnswersOnlyWhoHasItsKey(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	o := opened(t, db.DSN, consoleCmd{Change: true, Payloads: true})
	pause := func() (int, string) {
		form := url.Values{"does": {"pause"}, "topic": {"orders"}, "reason": {"r"}, "sure": {"yes"}, "token": {strings.Repeat("a", 24)}}
		_, page := o.get(o.at+"paused", "")
		if found := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(page); found != nil {
			form.Set("token", found[1])
		}
		return o.send(http.MethodPost, o.at+"paused", "", form)
	}
	paused := func(want int64) {
		t.Helper()
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.pause"); n != want {
			t.Errorf("%d pauses, want %d", n, want)
		}
	}
	refused := func(who, at string) {
		t.Helper()
		if status, body := o.get(at, ""); status != 403 || !strings.Contains(body, "open the address that the command has printed") || strings.Contains(body, "<") {
			t.Errorf("%s: %s is answered with %d: %s", who, at, status, body)
		}
	}
	for _, at := range []string{"", "letters", "flow", "paused", "static/console.js", "?key=", "?key=" + strings.Repeat("A", 26), "letters?key=x"} {
		refused("a stranger", o.at+at)
	}
	if status, _ := pause(); status != 403 {
		t.Errorf("a stranger's pause is answered with %d", status)
	}
	address, err := url.Parse(o.at)
	if err != nil {
		t.Fatal(err)
	}
	made := strings.Repeat("a", 24)
	o.Jar.SetCookies(address, []*http.Cookie{{Name: "holdfast_console", Value: made}, {Name: "holdfast_console_" + address.Port(), Value: made}})
	refused("with cookies of one's own making", o.at)
	if status, _ := pause(); status != 403 {
		t.Errorf("a pause with cookies of one's own making is answered with %d", status)
	}
	_, key, _ := strings.Cut(o.printed, "?key=")
	if status, _ := o.send(http.MethodPost, o.at+"paused?key="+key, "", url.Values{"does": {"pause"}, "topic": {"orders"}, "reason": {"r"}, "sure": {"yes"}, "token": {made}}); status != 403 {
		t.Errorf("a form with the key in its address is answered with %d", status)
	}
	paused(0)

	// The key becomes a cookie, and leaves the address.
	o.stranger()
	o.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.at+"letters/list?consumer=mail&key="+key, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := o.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if got := response.Header.Get("Location"); response.StatusCode != 303 || got != "/letters/list?consumer=mail" {
		t.Errorf("the key is answered with %d to %q", response.StatusCode, got)
	}
	if got := response.Header.Get("Set-Cookie"); !strings.Contains(got, "HttpOnly") || !strings.Contains(got, "SameSite=Strict") || strings.Contains(got, key) {
		t.Errorf("the cookie is %q", got)
	}
	o.CheckRedirect = nil
	if status, body := o.get(o.at, ""); status != 200 || !strings.Contains(body, "ann") {
		t.Errorf("with the cookie: %d: %s", status, body)
	}
	if status, body := pause(); status != 200 {
		t.Errorf("a pause is answered with %d: %s", status, body)
	}
	paused(1)
}

func TestConsole_TheConsoleChangesNothingUnlessAsked(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	for name, c := range map[string]consoleCmd{"by default": {}, "read only": {ReadOnly: true}, "both": {ReadOnly: true, Change: true}} {
		o := opened(t, db.DSN, c)
		if status, body := o.get(o.printed, ""); status != 200 {
			t.Fatalf("%s: %d: %s", name, status, body)
		}
		if _, page := o.get(o.at+"paused", ""); strings.Contains(page, `method="post"`) {
			t.Errorf("%s: there is a form on\n%s", name, page)
		}
	}
}
