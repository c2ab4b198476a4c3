// Command console serves the console behind a login of the service's own: here one name and one password, as HTTP knows them.
//
//	DATABASE_URL=postgres://… CONSOLE_PASSWORD=… go run ./examples/console
package main

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/console"
)

// account is a user as the service's login knows it.
type account struct {
	Email                 string
	OnCall, MayReadOrders bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("CONSOLE_PASSWORD")); err != nil {
		fmt.Fprintln(os.Stderr, "console:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, database, password string) error {
	if password == "" {
		return errors.New("CONSOLE_PASSWORD is empty: set the password of on-call@example.com")
	}
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	mux := http.NewServeMux()
	if err := mount(ctx, mux, pool, login(account{Email: "on-call@example.com", OnCall: true}, password)); err != nil {
		return err
	}
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: asking(mux), ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	fmt.Println("http://127.0.0.1:8080/ops/holdfast/")
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// mount adds the console to a service. session says who asks, as it does everywhere in the service.
func mount(ctx context.Context, mux *http.ServeMux, pool *pgxpool.Pool, session func(*http.Request) (account, error)) error {
	// snippet: console
	c, err := console.New(pool, console.Config{
		Prefix: "/ops/holdfast",
		UserFunc: func(r *http.Request) (console.User, error) {
			who, err := session(r) // your own
			return console.User{Name: who.Email, MayChange: who.OnCall, SeesPayload: who.MayReadOrders}, err
		},
	})
	if err != nil {
		return err
	}
	mux.Handle("/ops/holdfast/", c)
	go c.Run(ctx) // its charts have the last hour, also while nobody looks
	// end snippet
	return nil
}

func login(who account, password string) func(*http.Request) (account, error) {
	return func(r *http.Request) (account, error) {
		name, given, _ := r.BasicAuth()
		if name != who.Email || subtle.ConstantTimeCompare([]byte(given), []byte(password)) != 1 {
			return account{}, errors.New("not logged in")
		}
		return who, nil
	}
}

// asking makes a browser ask for name and password.
func asking(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, given := r.BasicAuth(); !given {
			w.Header().Set("WWW-Authenticate", `Basic realm="holdfast"`)
			http.Error(w, "log in", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
