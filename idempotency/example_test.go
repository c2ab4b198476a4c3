package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/outbox"
)

// A repeat gets the first answer, byte for byte, and the handler does not run.
func ExampleGuard_Middleware() {
	g := newGuard(newPool(), idempotency.Config{})
	service := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id int
		if err := idempotency.Tx(r.Context()).QueryRow(r.Context(), "insert into charge (cents) values (1000) returning id").Scan(&id); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Println("handler runs")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d\n", id)
	}))
	post(service, "key-1", "1000")
	post(service, "key-1", "1000")
	post(service, "key-2", "1000")
	// Output:
	// handler runs
	// 201 charge 1
	// 201 charge 1
	// handler runs
	// 201 charge 2
}

// A key that comes with another request is refused: with 409, or with 422 as in the IETF draft.
func ExampleConfig_mismatch() {
	for _, status := range []int{http.StatusConflict, http.StatusUnprocessableEntity} {
		g := newGuard(newPool(), idempotency.Config{MismatchStatus: status})
		service := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "charged") }))
		post(service, "key-1", "1000")
		post(service, "key-1", "9999")
	}
	// Output:
	// 200 charged
	// 409 idempotency.payload_mismatch
	// 200 charged
	// 422 idempotency.payload_mismatch
}

// What the handler writes through Tx, its events and its answer are one commit. A 5xx undoes all of it, and the next
// request with the key runs the handler again.
func ExampleTx() {
	pool, attempt := newPool(), 0
	g := newGuard(pool, idempotency.Config{})
	service := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, tx := r.Context(), idempotency.Tx(r.Context())
		attempt++
		_, err := tx.Exec(ctx, "insert into charge (cents) values (1000)")
		err = errors.Join(err, outbox.Write(ctx, tx, holdfast.Event{Topic: "charges", Type: "charge.created"}))
		if err != nil || attempt == 1 {
			http.Error(w, "no luck", http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "charged")
	}))
	post(service, "key-1", "1000")
	post(service, "key-1", "1000")

	var charges, events int
	err := pool.QueryRow(context.Background(), "select (select count(*) from charge), (select count(*) from holdfast.event)").Scan(&charges, &events)
	fmt.Println(charges, "charge,", events, "event", err)
	// Output:
	// 500 no luck
	// 200 charged
	// 1 charge, 1 event <nil>
}

// A handler that calls a payment provider must not keep a transaction open meanwhile. It works in steps: one that is done
// is not repeated when the request comes again, and the provider recognises the repeated call by its key.
func ExampleStep() {
	attempt := 0
	g := newGuard(newPool(), idempotency.Config{})
	service := g.Route(idempotency.Route{Lease: 30 * time.Second})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempt++
		id, err := idempotency.Step(r.Context(), "reserve", func(ctx context.Context, tx pgx.Tx) (id int, err error) {
			fmt.Println("step runs")
			return id, tx.QueryRow(ctx, "insert into charge (cents) values (1000) returning id").Scan(&id)
		})
		key := idempotency.DownstreamKey(r.Context(), "provider")
		if err != nil || key == "" || attempt == 1 {
			http.Error(w, "provider is away", http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, "charge", id)
	}))
	post(service, "key-1", "1000")
	post(service, "key-1", "1000")
	// Output:
	// step runs
	// 502 provider is away
	// 200 charge 1
}

// One route asks for UUIDs as keys, and lets requests without a key through.
func ExampleGuard_Route() {
	g := newGuard(newPool(), idempotency.Config{})
	service := g.Route(idempotency.Route{
		Operation: "POST /charges",
		KeyFormat: idempotency.UUID,
		Optional:  true,
	})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "charged") }))
	post(service, "key-1", "1000")
	post(service, idempotency.NewKey(), "1000")
	post(service, "", "1000")
	// Output:
	// 400 idempotency.key_invalid
	// 200 charged
	// 200 charged
}

// The Observer feeds metrics.
func ExampleObserver() {
	count := map[idempotency.Result]int{}
	g := newGuard(newPool(), idempotency.Config{Observer: idempotency.Observer{
		OnOutcome: func(_ context.Context, o idempotency.Outcome) { count[o.Result]++ },
	}})
	service := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "charged") }))
	for range 3 {
		post(service, "key-1", "1000")
	}
	fmt.Println("created:", count[idempotency.Created], "replayed:", count[idempotency.Replayed])
	// Output:
	// 200 charged
	// 200 charged
	// 200 charged
	// created: 1 replayed: 2
}

// A key that is made of what an operation consists of is the same at every try, also after a restart.
func ExampleDeterministic() {
	first := idempotency.Deterministic("alice", "refund", "charge-7")
	second := idempotency.Deterministic("alice", "refund", "charge-7")
	fmt.Println(len(first), first == second, idempotency.SHA256(first))
	// Output: 64 true <nil>
}
