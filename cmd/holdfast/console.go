package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/console"
)

type consoleCmd struct {
	Listen   string `help:"Loopback address and port; port 0 is any that is free." default:"127.0.0.1:7413" placeholder:"ADDRESS"`
	Change   bool   `help:"Allow changes: replay, edit, discard, retry, give up, pause and the like."`
	ReadOnly bool   `hidden:"" help:"Change nothing, which is the default."`
	Payloads bool   `help:"Show payloads, and whole errors of handlers."`
	By       string `help:"Your name, which is kept with what you do. Defaults to your login name." placeholder:"NAME"`

	Brokers []string `help:"Kafka brokers, separated by commas, to show the lag of consumers." placeholder:"HOST:PORT" env:"KAFKA_BROKERS" sep:","`

	Kafka kafkaFlags `embed:"" group:"kafka"`
}

func (c *consoleCmd) Run(p *program.Program) error {
	if err := loopback(c.Listen); err != nil {
		return program.UsageError{Err: err}
	}
	who := console.User{Name: c.By, MayChange: c.Change && !c.ReadOnly, SeesPayload: c.Payloads}
	if who.Name == "" {
		login, err := user.Current()
		if err != nil {
			return program.UsageError{Err: fmt.Errorf("your login name is not known: give --by: %w", err)}
		}
		who.Name = login.Username
	}
	ends, done, err := endsOf(c.Brokers, &c.Kafka, os.Getenv)
	if err != nil {
		return err
	}
	defer done()
	pool, err := p.Pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	h, err := console.New(pool, console.Config{
		Schema:   p.Database.Schema,
		EndsFunc: ends,
		Logger:   slog.New(slog.NewTextHandler(p.ErrOut, nil)),
		UserFunc: func(r *http.Request) (console.User, error) { return who, asked(r) },
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(p.Ctx, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	key := newDoorKey(listener.Addr())
	server := &http.Server{Handler: key.guard(h), ReadHeaderTimeout: 10 * time.Second}
	ended := context.AfterFunc(p.Ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(p.Ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(last)
	})
	defer ended()
	watching, unwatch := context.WithCancel(p.Ctx)
	var watch sync.WaitGroup
	watch.Go(func() { _ = h.Run(watching) })
	defer watch.Wait()
	defer unwatch()
	fmt.Fprintf(p.Out, "http://%s/?key=%s until you press ctrl-C\n", listener.Addr(), key.key)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// doorKey lets in who has read the address that the command printed: any user of the machine reaches a loopback address.
type doorKey struct {
	key    string // in that address
	cookie string // its name: browsers send cookies to every port of a host
	pass   string // its value, for who has shown the key
}

func newDoorKey(address net.Addr) doorKey {
	_, port, _ := net.SplitHostPort(address.String())
	return doorKey{key: rand.Text(), cookie: "holdfast_console_" + port, pass: rand.Text()}
}

// guard exchanges the key for the cookie, and refuses requests that have neither.
func (d doorKey) guard(next http.Handler) http.Handler {
	same := func(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.Method == http.MethodGet && same(query.Get("key"), d.key) {
			http.SetCookie(w, &http.Cookie{
				Name:     d.cookie,
				Value:    d.pass,
				Path:     "/",
				HttpOnly: true,
				SameSite: http.SameSiteStrictMode,
			})
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Set("Referrer-Policy", "no-referrer")
			query.Del("key")
			http.Redirect(w, r, (&url.URL{Path: path.Join("/", r.URL.Path), RawQuery: query.Encode()}).String(), http.StatusSeeOther)
			return
		}
		if cookie, err := r.Cookie(d.cookie); err != nil || !same(cookie.Value, d.pass) {
			w.Header().Set("Cache-Control", "no-store")
			http.Error(w, "This page is for the user who started holdfast console: open the address that the command has printed, with its key.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// loopback refuses addresses that others can reach: the command knows nobody but who started it.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("--listen is %s: it must be an address and a port, as 127.0.0.1:7413", address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen is %s: it must be a loopback address, because the console has no authentication; elsewhere mount package console behind your own authentication", address)
	}
	return nil
}

// asked refuses a request whose browser looked up some other name: a site could point its own name at this address.
func asked(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("the browser asks for the host %q", r.Host)
	}
	return nil
}
