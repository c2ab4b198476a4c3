package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// memory is a Store in memory: a fake of postgres.
type memory struct {
	mu   sync.Mutex
	last int64
	rows map[store.Key]*memoryRow
}

type memoryRow struct {
	fence       int64
	attempt     int
	fingerprint []byte
	answer      *store.Answer
	leased      time.Time
	expires     time.Time
}

func (m *memory) Claim(_ context.Context, k store.Key, fingerprint []byte, lease, ttl time.Duration) (store.Claimed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, now := m.rows[k], time.Now()
	expired := row != nil && !now.Before(row.expires)
	if row != nil && !expired && (row.answer != nil || now.Before(row.leased) || !bytes.Equal(row.fingerprint, fingerprint)) {
		return store.Claimed{Fingerprint: row.fingerprint, Answer: row.answer, ExpiresAt: row.expires}, nil
	}
	if m.last++; row == nil || expired {
		row = &memoryRow{fingerprint: fingerprint}
		m.rows[k] = row
	}
	row.fence, row.attempt, row.leased, row.expires = m.last, row.attempt+1, now.Add(lease), now.Add(max(lease, ttl))
	return store.Claimed{Mine: true, Fence: row.fence, Attempt: row.attempt, Expired: expired}, nil
}

func (m *memory) Renew(_ context.Context, k store.Key, fence int64, lease time.Duration) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.rows[k]
	if row == nil || row.fence != fence || row.answer != nil || row.leased.IsZero() {
		return false, nil
	}
	row.leased = time.Now().Add(lease)
	return true, nil
}

func (m *memory) Finish(_ context.Context, k store.Key, fence int64, a store.Answer, ttl time.Duration) (time.Time, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row := m.rows[k]
	if row == nil || row.fence != fence {
		return time.Time{}, false, nil
	}
	if row.answer == nil {
		row.answer, row.expires = &a, time.Now().Add(ttl)
	}
	return row.expires, true, nil
}

func (m *memory) Release(_ context.Context, k store.Key, fence int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if row := m.rows[k]; row != nil && row.fence == fence && row.answer == nil {
		row.leased = time.Time{}
	}
	return nil
}

func TestStore_AStoreKeepsWhatItPromises(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	for name, s := range map[string]store.Store{"memory": &memory{rows: map[store.Key]*memoryRow{}}, "postgres": b.guard().store} {
		ctx, k := t.Context(), store.Key{Scope: "principal:a", Operation: "op", Key: "k"}
		mine, other := append([]byte{versionForm}, bytes.Repeat([]byte{1}, 32)...), append([]byte{versionForm}, bytes.Repeat([]byte{2}, 32)...)
		claim := func(fingerprint []byte, lease time.Duration) store.Claimed {
			t.Helper()
			c, err := s.Claim(ctx, k, fingerprint, lease, time.Hour)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return c
		}
		is := func(what string, got bool, err error, want bool) {
			t.Helper()
			if got != want || err != nil {
				t.Errorf("%s: %s: got %v, %v", name, what, got, err)
			}
		}
		first := claim(mine, time.Hour)
		is("the first claim", first.Mine && first.Attempt == 1 && !first.Expired, nil, true)
		second := claim(mine, time.Hour)
		is("a claim of what is in use", !second.Mine && second.Answer == nil && bytes.Equal(second.Fingerprint, mine), nil, true)
		renewed, err := s.Renew(ctx, k, first.Fence, time.Hour)
		is("a renewal", renewed, err, true)
		renewed, err = s.Renew(ctx, k, first.Fence+1, time.Hour)
		is("a renewal under another fence", renewed, err, false)
		is("a release", true, s.Release(ctx, k, first.Fence), true)
		renewed, err = s.Renew(ctx, k, first.Fence, time.Hour)
		is("a renewal that comes after it", renewed, err, false)
		third := claim(other, time.Hour)
		is("another fingerprint after a release", !third.Mine && bytes.Equal(third.Fingerprint, mine), nil, true)
		third = claim(mine, time.Millisecond)
		is("a claim after a release", third.Mine && third.Fence > first.Fence && third.Attempt == 2, nil, true)
		renewed, err = s.Renew(ctx, k, first.Fence, time.Hour)
		is("a renewal under an old fence", renewed, err, false)
		is("a release under an old fence", true, s.Release(ctx, k, first.Fence), true)
		var fourth store.Claimed
		wait.Until(b, "the lease runs out", func() bool { fourth = claim(mine, time.Hour); return fourth.Mine })
		a := store.Answer{Status: 201, Header: http.Header{"Etag": {"\xff"}}, Body: []byte{0, 0xff}, BodyHash: hashOf([]byte{0, 0xff}), ResultRef: "r"}
		_, finished, err := s.Finish(ctx, k, third.Fence, a, time.Hour)
		is("an answer under an old fence", finished, err, false)
		until, finished, err := s.Finish(ctx, k, fourth.Fence, a, time.Hour)
		is("an answer", finished && time.Until(until) > 50*time.Minute, err, true)
		later := a
		later.Status = 200
		again, finished, err := s.Finish(ctx, k, fourth.Fence, later, 2*time.Hour)
		is("the same answer again", finished && again.Equal(until), err, true)
		renewed, err = s.Renew(ctx, k, fourth.Fence, time.Hour)
		is("a renewal after the answer", renewed, err, false)
		is("a release after the answer", true, s.Release(ctx, k, fourth.Fence), true)
		last := claim(other, time.Hour)
		is("what is answered", !last.Mine && last.Answer != nil && last.Answer.Status == 201 && bytes.Equal(last.Answer.Body, a.Body) && last.Answer.Header.Get("Etag") == "\xff" &&
			bytes.Equal(last.Answer.BodyHash, a.BodyHash) && last.Answer.ResultRef == "r" && last.ExpiresAt.Equal(until), nil, true)
	}
}

// A Store compares whole fingerprints, and the Store of a Guard their versions and hashes: rows of earlier builds have no checksums.
func TestStore_TheStoreOfAGuardDecidesByTheHash(t *testing.T) {
	b := setup(t)
	keys := func() *memory { return &memory{rows: map[store.Key]*memoryRow{}} }
	g, err := NewEphemeral(keys(), b.config())
	if err != nil {
		t.Fatal(err)
	}
	short := append([]byte{versionHostForm}, bytes.Repeat([]byte{1}, 32)...)
	whole := append(bytes.Clone(short), bytes.Repeat([]byte{7}, wholeSize-32)...)
	later := append([]byte{versionHostBytes}, whole[1:]...)
	other := append([]byte{versionHostForm}, append(bytes.Repeat([]byte{2}, 32), whole[33:]...)...)
	for name, c := range map[string]struct {
		store  store.Store
		byHash bool
	}{"a Store": {keys(), false}, "without Postgres": {g.store, true}, "with Postgres": {b.guard().store, true}} {
		for _, fingerprints := range [][2][]byte{{short, whole}, {whole, short}} {
			k := store.Key{Scope: "principal:a", Operation: "op", Key: fmt.Sprint("k", len(fingerprints[0]))}
			claim := func(fingerprint []byte) store.Claimed {
				t.Helper()
				claimed, err := c.store.Claim(t.Context(), k, fingerprint, time.Hour, time.Hour)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return claimed
			}
			first := claim(fingerprints[0])
			if again := claim(fingerprints[1]); again.Mine || !bytes.Equal(again.Fingerprint, fingerprints[0]) {
				t.Errorf("%s: while it is in use a claim is %+v", name, again)
			}
			if err := c.store.Release(t.Context(), k, first.Fence); err != nil {
				t.Fatal(err)
			}
			for _, of := range [][]byte{other, later} {
				if taken := claim(of); taken.Mine || !bytes.Equal(taken.Fingerprint, fingerprints[0]) {
					t.Errorf("%s: a claim of another request is %+v", name, taken)
				}
			}
			if second := claim(fingerprints[1]); second.Mine != c.byHash || c.byHash && (second.Fence <= first.Fence || second.Attempt != 2) {
				t.Errorf("%s: of %d bytes, after %d, a claim is %+v", name, len(fingerprints[1]), len(fingerprints[0]), second)
			}
		}
	}
}

// What a build without checksums has begun or answered in a Store goes on, and a conflict says what differs.
func TestStore_WhatWasStoredWithoutChecksumsIsKnown(t *testing.T) {
	b := &bundle{T: t}
	keys, log := &memory{rows: map[store.Key]*memoryRow{}}, &logtest.Log{}
	g, err := NewEphemeral(keys, b.config(func(c *Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) }))
	if err != nil {
		t.Fatal(err)
	}
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[bool]int{true: 500, false: 201}[b.runs.Add(1) == 1])
	})
	b.is(b.send(h, sent{key: "k"}), 500, "")
	row := keys.rows[store.Key{Scope: "principal:a", Operation: "POST /charges", Key: "k"}]
	whole := row.fingerprint
	row.fingerprint = whole[:33]
	b.is(b.send(h, sent{key: "k", body: "{}"}), 409, codePayloadMismatch)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if n := b.runs.Load(); n != 2 || len(row.fingerprint) != 33 {
		t.Errorf("the handler ran %d times, and the fingerprint has %d bytes", n, len(row.fingerprint))
	}
	if text := log.String(); strings.Contains(text, "differs") {
		t.Errorf("without checksums nobody knows what differs: %s", text)
	}
	row.fingerprint = whole
	b.is(b.send(h, sent{key: "k", body: "{}"}), 409, codePayloadMismatch)
	if text := log.String(); !strings.Contains(text, `"differs":["body"]`) {
		t.Errorf("the log does not say what differs: %s", text)
	}
}

func TestStore_AGuardWithoutPostgres(t *testing.T) {
	b := &bundle{T: t}
	keys := &memory{rows: map[store.Key]*memoryRow{}}
	g, err := NewEphemeral(keys, b.config())
	if err != nil {
		t.Fatal(err)
	}
	status := 500
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		if _, err := Tx(r.Context()).Exec(r.Context(), "select 1"); err == nil {
			t.Error("it has a transaction")
		}
		_, err := Step(r.Context(), "one", func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, nil })
		if !errors.Is(err, errNoDatabase) || !strings.Contains(err.Error(), "make the Guard with New") {
			t.Errorf("a step: %v", err)
		}
		w.WriteHeader(status)
		w.Write([]byte("body"))
	})
	b.is(b.send(h, sent{key: "k"}), 500, "")
	status = 201
	first := b.send(h, sent{key: "k"})
	b.is(first, 201, "")
	b.same(first, b.send(h, sent{key: "k"}))
	b.is(b.send(h, sent{key: "k", body: "{}"}), 409, codePayloadMismatch)
	keys.rows[store.Key{Scope: "principal:a", Operation: "POST /charges", Key: "k"}].answer.Body = []byte("spoilt")
	b.is(b.send(h, sent{key: "k"}), 503, codeAnswerUnusable)
	if n := b.runs.Load(); n != 2 {
		t.Errorf("the handler ran %d times", n)
	}
	if n, err := g.RunOnce(t.Context()); n != 0 || err != nil {
		t.Error(n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
	func() {
		defer func() {
			if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), "only Postgres stores requests") {
				t.Errorf("got %v", err)
			}
		}()
		g.Route(completed())
	}()
	if g.Routes()[0].Lease != defaultLease {
		t.Errorf("the lease is %s", g.Routes()[0].Lease)
	}
	if _, err := NewEphemeral(nil, b.config()); err == nil {
		t.Error("no store is no problem")
	}
	if _, err := NewEphemeral(keys, Config{}); err == nil {
		t.Error("no principal is no problem")
	}
}

// brokenStore fails, or has what nobody can read.
type brokenStore struct {
	store.Store
	err error
}

func (s brokenStore) Claim(context.Context, store.Key, []byte, time.Duration, time.Duration) (store.Claimed, error) {
	return store.Claimed{}, s.err
}

// R27.
func TestStore_WithoutAStoreNobodyIsLetThrough(t *testing.T) {
	b := &bundle{T: t}
	for code, err := range map[string]error{codeStoreUnavailable: errors.New("planned"), codeAnswerUnusable: errors.Join(store.ErrUnusable, errors.New("planned"))} {
		g, failed := NewEphemeral(brokenStore{err: err}, b.config())
		if failed != nil {
			t.Fatal(failed)
		}
		w := b.send(b.service(g, func(http.ResponseWriter, *http.Request) { t.Error("the handler ran") }), sent{key: "k"})
		b.is(w, 503, code)
	}
}
