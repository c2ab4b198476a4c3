package redisstore

import (
	"context"
	"crypto/sha256"
	"net/http"
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/contrib/redis/internal/redistest"
	"github.com/holdfast-go/holdfast/idempotency/store"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(crashing); address != "" {
		crash(address)
	}
	redis.SetLogger(quiet{}) // it tells of every connection that tests cut
	os.Exit(m.Run())
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// bundle is what a test has: its own Redis, a client, and a store on it.
type bundle struct {
	*testing.T
	server *redistest.Server
	client *redis.Client
	store  *Store
}

func setup(t *testing.T, options ...string) *bundle {
	t.Helper()
	t.Parallel()
	server := redistest.Start(t, options...)
	client := server.Client()
	return &bundle{T: t, server: server, client: client, store: storeOn(t, client)}
}

func storeOn(t testing.TB, client redis.UniversalClient) *Store {
	t.Helper()
	s, err := New(client, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Spans of the tests: a lease that does not run out by itself, and how long answers are kept.
const (
	long = time.Minute
	day  = 24 * time.Hour
)

var (
	one   = store.Key{Scope: "principal:a", Operation: "POST /charges", Key: "k1"}
	asked = []byte("fingerprint\x00of this request")
	other = []byte("fingerprint\x00of another one")
)

func answerOf(body string) store.Answer {
	hash := sha256.Sum256([]byte(body))
	return store.Answer{Status: 201, Header: http.Header{"Location": {"/charges/1"}}, Body: []byte(body), BodyHash: hash[:], ResultRef: "ch_1"}
}

// claim claims for a minute.
func (b *bundle) claim(k store.Key, fingerprint []byte) store.Claimed {
	b.Helper()
	c, err := b.store.Claim(b.Context(), k, fingerprint, long, day)
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// mine claims what must be free.
func (b *bundle) mine(k store.Key, fingerprint []byte) store.Claimed {
	b.Helper()
	c := b.claim(k, fingerprint)
	if !c.Mine || c.Fence <= 0 || c.Answer != nil {
		b.Fatalf("claimed %+v, want it to be mine", c)
	}
	return c
}

// busy claims what must be in use under a fingerprint.
func (b *bundle) busy(k store.Key, fingerprint, holder []byte) {
	b.Helper()
	if diff := cmp.Diff(store.Claimed{Fingerprint: holder}, b.claim(k, fingerprint)); diff != "" {
		b.Fatalf("claimed what is in use (-want +got):\n%s", diff)
	}
}

// answered claims what must be answered.
func (b *bundle) answered(k store.Key, want store.Answer) store.Claimed {
	b.Helper()
	c := b.claim(k, asked)
	if c.Mine || !reflect.DeepEqual(&want, c.Answer) { // cmp takes a second for a mebibyte
		b.Fatalf("claimed %+v; the answer (-want +got):\n%s", c, cmp.Diff(&want, c.Answer))
	}
	return c
}

func (b *bundle) is(want bool) func(bool, error) {
	return func(got bool, err error) {
		b.Helper()
		if got != want || err != nil {
			b.Fatalf("got %t, %v, want %t", got, err, want)
		}
	}
}

func (b *bundle) finish(k store.Key, fence int64, a store.Answer) (bool, error) {
	_, mine, err := b.store.Finish(b.Context(), k, fence, a, day)
	return mine, err
}

// runOut lets a lease run out now.
func (b *bundle) runOut(k store.Key) {
	b.Helper()
	b.set(k, "leased_until", "1")
}

func (b *bundle) set(k store.Key, field, value string) {
	b.Helper()
	if err := b.client.HSet(b.Context(), nameOf(defaultPrefix, k), field, value).Err(); err != nil {
		b.Fatal(err)
	}
}

// kept is all that Redis has of a key.
func (b *bundle) kept(k store.Key) map[string]string {
	b.Helper()
	fields, err := b.client.HGetAll(b.Context(), nameOf(defaultPrefix, k)).Result()
	if err != nil {
		b.Fatal(err)
	}
	return fields
}

// unchanged checks that f changes nothing of a key.
func (b *bundle) unchanged(k store.Key, f func()) {
	b.Helper()
	before, ends := b.kept(k), b.client.PExpireTime(b.Context(), nameOf(defaultPrefix, k)).Val()
	f()
	if diff := cmp.Diff(before, b.kept(k)); diff != "" {
		b.Fatalf("the key was changed (-before +after):\n%s", diff)
	}
	if now := b.client.PExpireTime(b.Context(), nameOf(defaultPrefix, k)).Val(); now != ends {
		b.Fatalf("the key ended at %s, and now at %s", ends, now)
	}
}
