package webhook_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
)

// newInbox returns an inbox with a handler of each of these types, which prints its event.
func newInbox(types ...string) *inbox.Inbox {
	in, err := inbox.New(exampledb.New(), inbox.Config{Consumer: "hooks", Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range types {
		in.Handle(name, func(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
			fmt.Printf("%s from %s: %s\n", e.Type, e.Source, e.Payload)
			return nil
		})
	}
	return in
}

// post sends a delivery as a provider does, and prints the status of the answer.
func post(endpoint http.Handler, h http.Header, body []byte) {
	r := httptest.NewRequest(http.MethodPost, "/hooks", bytes.NewReader(body))
	for name, values := range h {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	endpoint.ServeHTTP(w, r)
	fmt.Println(w.Code)
}
