package redisstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/contrib/redis/internal/redistest"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The middleware on Redis, as its users have it.

// guarded is a handler behind the middleware on a store, as a process has it.
func guarded(store *Store, handler http.HandlerFunc) (http.Handler, error) {
	g, err := idempotency.NewEphemeral(store, idempotency.Config{
		Principal: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil },
		Logger:    slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return g.Route(idempotency.Route{Lease: long})(handler), nil
}

func guardedBy(t testing.TB, store *Store, handler http.HandlerFunc) http.Handler {
	t.Helper()
	h, err := guarded(store, handler)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// effects is how often charging has charged: it counts in Redis, under that name.
func (b *bundle) effects() int64 {
	b.Helper()
	n, err := b.client.Get(b.Context(), "effects").Int64()
	if err != nil && err != redis.Nil {
		b.Fatal(err)
	}
	return n
}

func charging(client *redis.Client) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n, err := client.Incr(r.Context(), "effects").Result()
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Location", "/charges/"+strconv.FormatInt(n, 10))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d\x00\xff\n", n)
	}
}

func send(ctx context.Context, h http.Handler, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/charges", strings.NewReader(body))
	r.Header.Set("Account", "a")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// answers checks an answer's status, and the code of its problem or its Idempotency-Status.
func (b *bundle) answers(w *httptest.ResponseRecorder, status int, what string) {
	b.Helper()
	if w.Code != status || !strings.Contains(w.Body.String(), `"`+what+`"`) && w.Header().Get("Idempotency-Status") != what {
		b.Fatalf("got %d %v %q, want %d %s", w.Code, w.Header(), w.Body, status, what)
	}
}

// name is that of the one key in Redis.
func (b *bundle) name() string {
	b.Helper()
	names, err := b.client.Keys(b.Context(), defaultPrefix+"*").Result()
	if err != nil || len(names) != 1 {
		b.Fatalf("the keys are %q, %v, want one", names, err)
	}
	return names[0]
}

// R5.
func TestMiddleware_OnRedisARepeatGetsTheFirstAnswerByteForByte(t *testing.T) {
	b := setup(t)
	h := guardedBy(t, b.store, charging(b.client))
	first := send(t.Context(), h, "k1", "10")
	b.answers(first, 201, "stored")
	// The second process knows of it as well.
	again := send(t.Context(), guardedBy(t, storeOn(t, b.server.Client()), charging(b.client)), "k1", "10")
	b.answers(again, 201, "replayed")
	if !bytes.Equal(first.Body.Bytes(), again.Body.Bytes()) || first.Body.String() != "charge 1\x00\xff\n" {
		t.Errorf("the bodies are %q and %q", first.Body, again.Body)
	}
	for _, name := range []string{"Content-Type", "Location"} {
		if !reflect.DeepEqual(first.Header()[name], again.Header()[name]) {
			t.Errorf("%s is %q and %q", name, first.Header()[name], again.Header()[name])
		}
	}
	b.answers(send(t.Context(), h, "k2", "10"), 201, "stored")
	if n := b.effects(); n != 2 {
		t.Errorf("%d effects, want 2 of two keys", n)
	}
}

// R6.
func TestMiddleware_OnRedisAMismatchRunsNothingAndChangesNothing(t *testing.T) {
	b := setup(t)
	h := guardedBy(t, b.store, charging(b.client))
	b.answers(send(t.Context(), h, "k1", "10"), 201, "stored")
	b.answers(send(t.Context(), h, "k1", "20"), 409, "idempotency.payload_mismatch")
	b.answers(send(t.Context(), h, "k1", "10"), 201, "replayed")
	if n := b.effects(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// R11.
func TestMiddleware_OnRedisARepeatOfARunningRequestIsAConflict(t *testing.T) {
	b := setup(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	charge := charging(b.client)
	h := guardedBy(t, b.store, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-leave
		charge(w, r)
	})
	first := make(chan *httptest.ResponseRecorder)
	go func() { first <- send(context.WithoutCancel(t.Context()), h, "k1", "10") }()
	<-entered
	w := send(t.Context(), h, "k1", "10")
	b.answers(w, 409, "idempotency.in_progress")
	if w.Header().Get("Retry-After") == "" {
		t.Error("the answer does not say when to come again")
	}
	close(leave)
	b.answers(<-first, 201, "stored")
	b.answers(send(t.Context(), h, "k1", "10"), 201, "replayed")
}

// R20.
func TestMiddleware_OnRedisA5xxIsForgottenAndItsKeyFreeAtOnce(t *testing.T) {
	b := setup(t)
	charge, fails := charging(b.client), true
	h := guardedBy(t, b.store, func(w http.ResponseWriter, r *http.Request) {
		if fails {
			fails = false
			http.Error(w, "no", http.StatusBadGateway)
			return
		}
		charge(w, r)
	})
	if w := send(t.Context(), h, "k1", "10"); w.Code != http.StatusBadGateway {
		t.Fatalf("got %d %s", w.Code, w.Body)
	}
	b.answers(send(t.Context(), h, "k1", "10"), 201, "stored")
}

// R27.
func TestMiddleware_OnRedisThatIsAwayNothingRuns(t *testing.T) {
	b := setup(t)
	var runs atomic.Int32
	h := guardedBy(t, b.store, func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		w.WriteHeader(http.StatusCreated)
	})
	b.answers(send(t.Context(), h, "k0", "10"), 201, "stored")
	b.server.Kill()
	w := send(t.Context(), h, "k1", "10")
	b.answers(w, 503, "idempotency.store_unavailable")
	if runs.Load() != 1 || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d runs, want 1; %v", runs.Load(), w.Header())
	}
	b.server.Restart()
	b.answers(send(t.Context(), h, "k1", "10"), 201, "stored")
}

// R28.
func TestMiddleware_ARedisLostWhileAHandlerRunsMakesTheOutcomeUnknown(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t, "--appendonly", "yes", "--appendfsync", "always")
	var runs atomic.Int32
	h := guardedBy(t, b.store, func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		b.server.Kill()
		w.WriteHeader(http.StatusCreated)
	})
	b.answers(send(t.Context(), h, "k1", "10"), 503, "idempotency.outcome_unknown")
	b.server.Restart()
	// Another process, since the pool of this one asks only every second whether Redis is there again.
	h = guardedBy(t, storeOn(t, b.server.Client()), func(http.ResponseWriter, *http.Request) { runs.Add(1) })
	b.answers(send(t.Context(), h, "k1", "10"), 409, "idempotency.in_progress") // until the lease runs out
	if runs.Load() != 1 {
		t.Errorf("%d runs, want 1", runs.Load())
	}
}

// R42.
func TestMiddleware_OnRedisAnAnswerThatIsNotAsItWasIsNeitherSentNorRunAgain(t *testing.T) {
	b := setup(t)
	h := guardedBy(t, b.store, charging(b.client))
	b.answers(send(t.Context(), h, "k1", "10"), 201, "stored")
	name := b.name()
	for field, value := range map[string]string{"body": "charge 2", "version": "9"} {
		was := b.client.HGet(t.Context(), name, field).Val()
		b.client.HSet(t.Context(), name, field, value)
		b.answers(send(t.Context(), h, "k1", "10"), 503, "idempotency.answer_unusable")
		b.client.HSet(t.Context(), name, field, was)
	}
	b.answers(send(t.Context(), h, "k1", "10"), 201, "replayed")
	if n := b.effects(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

// R30.
func TestMiddleware_OnRedisALongAnswerIsNotKeptAndNotMadeAgain(t *testing.T) {
	b := setup(t)
	var runs atomic.Int32
	h := guardedBy(t, b.store, func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 2<<20))
	})
	if first := send(t.Context(), h, "k1", "10"); first.Body.Len() != 2<<20 {
		t.Errorf("the first answer has %d bytes", first.Body.Len())
	}
	again := send(t.Context(), h, "k1", "10")
	b.answers(again, 200, "replayed")
	if again.Body.Len() != 0 || again.Header().Get("Idempotency-Body") != "omitted" || runs.Load() != 1 {
		t.Errorf("the second has %d bytes, %v, after %d runs", again.Body.Len(), again.Header(), runs.Load())
	}
}

// R11.
func TestMiddleware_OnRedis10000RepeatsAtOnceHaveOneEffect(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	handlers := make([]http.Handler, 4) // as many processes
	for i := range handlers {
		client := b.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 10, time.Minute })
		handlers[i] = guardedBy(t, storeOn(t, client), charging(b.client))
	}
	var mu sync.Mutex
	statuses, bodies := map[int]int{}, map[string]int{}
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range 10_000 {
		all.Go(func() {
			<-begin
			w := send(t.Context(), handlers[i%len(handlers)], "k1", "10")
			mu.Lock()
			defer mu.Unlock()
			statuses[w.Code]++
			if w.Code == http.StatusCreated {
				bodies[w.Body.String()]++
			}
		})
	}
	close(begin)
	all.Wait()
	if statuses[201]+statuses[409] != 10_000 || statuses[201] == 0 || len(bodies) != 1 || b.effects() != 1 {
		t.Errorf("statuses %v, %d bodies, %d effects; want 201 or 409, one body, one effect", statuses, len(bodies), b.effects())
	}
	t.Logf("statuses %v", statuses)
	b.answers(send(t.Context(), handlers[0], "k1", "10"), 201, "replayed")
}

// crashing names, for a child process of this test, the Redis it is to use.
const crashing = "HOLDFAST_TEST_CRASHING_ON_REDIS"

// crash is a process that ends between its effect and its answer.
func crash(address string) {
	client := redis.NewClient(&redis.Options{Addr: address})
	store, err := New(client, Config{})
	if err != nil {
		panic(err)
	}
	charge := charging(client)
	h, err := guarded(store, func(w http.ResponseWriter, r *http.Request) {
		charge(w, r)
		os.Exit(crashed)
	})
	if err != nil {
		panic(err)
	}
	send(context.Background(), h, "k1", "10")
	panic("still here")
}

// crashed is the status with which that process ends.
const crashed = 42

// This is the promise that is weaker: on Postgres there is one effect.
// R21.
func TestMiddleware_OnRedisACrashBeforeTheAnswerRunsAgainAfterTheLease(t *testing.T) {
	b := setup(t)
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), crashing+"="+b.server.Addr)
	if out, err := child.CombinedOutput(); child.ProcessState.ExitCode() != crashed {
		t.Fatalf("%v: %s", err, out)
	}
	if n := b.effects(); n != 1 {
		t.Fatalf("%d effects of the process that crashed, want 1", n)
	}
	h := guardedBy(t, b.store, charging(b.client))
	b.answers(send(t.Context(), h, "k1", "10"), 409, "idempotency.in_progress")
	b.answers(send(t.Context(), h, "k1", "20"), 409, "idempotency.payload_mismatch")
	b.client.HSet(t.Context(), b.name(), "leased_until", "1") // its lease runs out
	w := send(t.Context(), h, "k1", "10")
	b.answers(w, 201, "stored")
	if n := b.effects(); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
	b.answers(send(t.Context(), h, "k1", "10"), 201, "replayed")
}

// Replays through the middleware: once by a call of the handler, once over HTTP on the loopback.
func BenchmarkReplay(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client(func(o *redis.Options) { o.PoolSize = 64 })
	h := guardedBy(b, storeOn(b, client), charging(client))
	if w := send(b.Context(), h, "k1", "10"); w.Code != 201 {
		b.Fatal(w.Code, w.Body)
	}
	b.Run("handler", func(b *testing.B) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if w := send(b.Context(), h, "k1", "10"); w.Header().Get("Idempotent-Replayed") != "true" {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "replays/s")
	})
	b.Run("HTTP", func(b *testing.B) {
		s := httptest.NewServer(h)
		defer s.Close()
		c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
		defer c.CloseIdleConnections()
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL+"/charges", strings.NewReader("10"))
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Account", "a")
				r.Header.Set("Idempotency-Key", "k1")
				resp, err := c.Do(r)
				if err != nil {
					b.Fatal(err)
				}
				_, _ = new(bytes.Buffer).ReadFrom(resp.Body)
				_ = resp.Body.Close()
				if resp.Header.Get("Idempotent-Replayed") != "true" {
					b.Fatal(resp.Status)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "replays/s")
	})
}
