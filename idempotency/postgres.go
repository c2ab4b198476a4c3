package idempotency

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/plain"
)

// postgres is the Store of a Guard that has a pool. Each call is one statement that commits by itself.
type postgres struct{ g *Guard }

var _ store.Store = postgres{}

// errClaimInDoubt says that nobody knows whether a key was claimed. If it was, holdfast may also run the request
// itself.
var errClaimInDoubt = errors.New("the answer to the claim was lost, and the request may still run")

// maxLooks is how often a claim looks at a row that keeps changing.
const maxLooks = 3

func (p postgres) Claim(ctx context.Context, k store.Key, fingerprint []byte, lease, ttl time.Duration) (store.Claimed, error) {
	return p.claim(ctx, k, fingerprint, lease, ttl, nil, 0)
}

// claim is Claim that also stores the request, unless that is nil. It is due some time after the lease.
func (p postgres) claim(ctx context.Context, k store.Key, fingerprint []byte, lease, ttl time.Duration, request *kept.Request, due time.Duration) (store.Claimed, error) {
	if len(fingerprint) == 0 {
		return store.Claimed{}, errors.New("claim key: the fingerprint is empty")
	}
	owner := uuid.New() // If the answer to a claim is lost, it shows whose row it is.
	args := []any{k.Scope, k.Operation, k.Key, lockNumber(p.g.c.Schema, k.Scope, k.Operation, k.Key), fingerprint[1:], int16(fingerprint[0]), owner.String(),
		lease.Microseconds(), ttl.Microseconds(), p.g.c.KeepExpired.Microseconds()}
	args = append(args, request.Columns()...)
	args = append(args, (lease + due).Microseconds())
	// If the request is stored, a claim that succeeded although its answer was lost has the request run later.
	var failed error
	doubted := func(err error) error {
		var unsent *pgconn.ConnectError
		if request == nil || failed == nil || errors.As(failed, &unsent) {
			return err
		}
		return fmt.Errorf("%w: %w", errClaimInDoubt, err)
	}
	for look := 1; ; look++ {
		s, err := p.g.lookup(ctx, p.g.pool, k) // A repeat ends here and writes nothing.
		switch {
		case err != nil:
			return store.Claimed{}, doubted(errors.Join(failed, err))
		case s != nil && s.State == statePending && s.Owner == owner && s.Live:
			return store.Claimed{Mine: true, Fence: s.Fence, Attempt: s.Attempt}, nil
		case !claimable(s, fingerprint):
			return p.taken(s)
		case look == maxLooks && failed != nil:
			return store.Claimed{}, doubted(failed)
		case look == maxLooks:
			return store.Claimed{Fingerprint: fingerprint}, nil // The row keeps changing, so the key is in use.
		}
		c := store.Claimed{Mine: true}
		failed = p.once(ctx, func(ctx context.Context) error {
			return p.g.pool.QueryRow(ctx, p.g.sql.claim, args...).Scan(&c.Fence, &c.Attempt, &c.Expired)
		})
		var pg *pgconn.PgError
		switch {
		case failed == nil:
			return c, nil
		case errors.Is(failed, pgx.ErrNoRows), errors.As(failed, &pg) && pg.Code == "40001":
			failed = nil // Another claim was faster.
		case errors.As(failed, &pg):
			return store.Claimed{}, fmt.Errorf("claim key: %w", failed)
		}
	}
}

// taken reports who has a key that cannot be claimed.
func (p postgres) taken(s *stored) (store.Claimed, error) {
	c := store.Claimed{Fingerprint: append([]byte{byte(s.Version)}, s.Fingerprint...), ExpiresAt: s.ExpiresAt}
	switch s.State {
	case statePending:
		return c, nil
	case stateComplete, stateOmitted:
		a := s.Answer
		a.Omitted = s.State == stateOmitted
		c.Answer = &a
		return c, nil
	}
	return store.Claimed{}, fmt.Errorf("%w: its state is %q", store.ErrUnusable, s.State)
}

// storedOf returns what foundOf needs to know of a key that the caller does not have.
func storedOf(c store.Claimed) *stored {
	s := &stored{State: statePending, ExpiresAt: c.ExpiresAt}
	if len(c.Fingerprint) > 0 {
		s.Version, s.Fingerprint = int16(c.Fingerprint[0]), c.Fingerprint[1:]
	}
	if a := c.Answer; a != nil {
		s.State, s.Answer = stateComplete, *a
		if s.Answer.Header == nil {
			s.Answer.Header = http.Header{}
		}
		if a.Omitted {
			s.State = stateOmitted
		}
	}
	return s
}

// byHash is a Store that decides by the hash of a fingerprint, as postgres does, made of one that compares all of it: the checksums after
// the hash may be missing in what an earlier build has claimed.
type byHash struct{ store.Store }

func (b byHash) Claim(ctx context.Context, k store.Key, fingerprint []byte, lease, ttl time.Duration) (store.Claimed, error) {
	c, err := b.Store.Claim(ctx, k, fingerprint, lease, ttl)
	if err != nil || c.Mine || c.Answer != nil || bytes.Equal(c.Fingerprint, fingerprint) || !storedOf(c).hasHash(fingerprint) {
		return c, err
	}
	return b.Store.Claim(ctx, k, c.Fingerprint, lease, ttl)
}

// once runs a statement that writes, with a time limit. It does not end with the client: the result would be unknown.
func (p postgres) once(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(databaseTimeout, p.g.c.AcquireTimeout))
	defer cancel()
	return do(ctx)
}

func (p postgres) Renew(ctx context.Context, k store.Key, fence int64, lease time.Duration) (bool, error) {
	tag, err := p.g.pool.Exec(ctx, p.g.sql.renew, k.Scope, k.Operation, k.Key, fence, lease.Microseconds())
	if err != nil {
		return false, fmt.Errorf("renew lease: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (p postgres) Finish(ctx context.Context, k store.Key, fence int64, a store.Answer, ttl time.Duration) (expiresAt time.Time, mine bool, err error) {
	headers, err := kept.HeadersText(a.Header)
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer: %w", err)
	}
	state := stateComplete
	if a.Omitted {
		state = stateOmitted
	}
	var done time.Time
	err = p.g.pool.QueryRow(ctx, p.g.sql.finish, k.Scope, k.Operation, k.Key, fence, state, int16(a.Status), headers, a.Body, a.BodyHash, a.ResultRef, ttl.Microseconds()).Scan((*plain.Micros)(&done))
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer: %w", err)
	}
	if !done.IsZero() {
		return done, true, nil
	}
	s, err := p.g.lookup(ctx, p.g.pool, k) // An earlier attempt may have succeeded although its reply was lost.
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer: %w", err)
	}
	if s == nil || s.State == statePending || s.Fence != fence {
		return expiresAt, false, nil
	}
	return s.ExpiresAt, true, nil
}

func (p postgres) Release(ctx context.Context, k store.Key, fence int64) error {
	return p.release(ctx, k, fence, false, 0)
}

// release is Release. forget means that nothing was done under the key: if it has no steps, another request may have
// it. due is when holdfast may run a stored request again.
func (p postgres) release(ctx context.Context, k store.Key, fence int64, forget bool, due time.Duration) error {
	err := pgx.BeginTxFunc(ctx, p.g.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(p.g.sql.releaseLock, k.Scope, k.Operation, k.Key, fence)
		b.Queue(p.g.sql.release, k.Scope, k.Operation, k.Key, fence, forget, due.Microseconds())
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return fmt.Errorf("release key: %w", err)
	}
	return nil
}
