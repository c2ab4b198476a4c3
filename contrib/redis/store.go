package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/idempotency"
)

// DefaultPrefix is what the names of keys begin with.
const DefaultPrefix = "idempotency:"

// Config says how a Store works. Its zero value works.
type Config struct {
	// Prefix is what the names of all keys begin with, to keep services apart that share a Redis. At most 64 bytes of
	// visible ASCII without braces. Defaults to DefaultPrefix.
	Prefix string
}

// Store keeps idempotency keys in Redis, for idempotency.NewEphemeral; the package's comment says what that promises.
// It may be used by many goroutines, and many processes, at once.
type Store struct {
	client      redis.UniversalClient
	prefix      string
	claims      chan struct{} // holds a token for each Claim that is on its way
	poolTimeout time.Duration // of a Claim that waits for room there
}

var _ idempotency.ExpiryStore = (*Store)(nil)

// New makes a Store on a client, which stays the caller's: its time-outs and its pool say how long a request waits for
// Redis. Set ContextTimeoutEnabled, so that it does not wait longer than its own context. A redis.Ring is refused: it
// sends the keys of a node that is away to another one, where they are new.
//
// Claims use half of the pool's connections at most, and wait for one of them for PoolTimeout. The rest is for those who
// have a key: a storm of repeats must not keep the one that ran from storing its answer, since after its lease the next
// would run as well. Give the pool two connections or more.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	var problems []error
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		problems = append(problems, errors.New("client is nil: it must be connected to a Redis"))
	}
	if _, ring := client.(*redis.Ring); ring {
		problems = append(problems, errors.New("client is a redis.Ring: it must be a Client or a ClusterClient, which do not look for a key on another node when its own is away"))
	}
	if c.Prefix == "" {
		c.Prefix = DefaultPrefix
	}
	if len(c.Prefix) > 64 || strings.IndexFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) >= 0 {
		problems = append(problems, fmt.Errorf("prefix is %q: it must have at most 64 bytes of visible ASCII, no braces", c.Prefix))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("configure redis store: %w", errors.Join(problems...))
	}
	connections, poolTimeout := poolOf(client)
	return &Store{client: client, prefix: c.Prefix, claims: make(chan struct{}, max(connections/2, 1)), poolTimeout: poolTimeout}, nil
}

// poolOf is how many connections a client has to one Redis, and how long it waits for one of them.
func poolOf(client redis.UniversalClient) (connections int, poolTimeout time.Duration) {
	switch c := client.(type) {
	case *redis.Client:
		connections, poolTimeout = c.Options().PoolSize, c.Options().PoolTimeout
	case *redis.ClusterClient:
		connections, poolTimeout = c.Options().PoolSize, c.Options().PoolTimeout
	}
	if connections <= 0 {
		connections = 5 * runtime.GOMAXPROCS(0) // the least that go-redis takes by itself
	}
	if poolTimeout <= 0 {
		poolTimeout = 6 * time.Second // likewise
	}
	return connections, poolTimeout
}

// errNoRoom says that too many claims were on their way. Nothing was asked of Redis.
var errNoRoom = errors.New("no connection came free for a claim")

// enter waits for room for a Claim. leave gives it back.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	poolTimeout := time.NewTimer(s.poolTimeout)
	defer poolTimeout.Stop()
	select {
	case s.claims <- struct{}{}:
		return func() { <-s.claims }, nil
	case <-poolTimeout.C:
		return nil, errNoRoom
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Claim implements idempotency.Store. Redis forgets what has expired, so Claimed.Expired is never set.
func (s *Store) Claim(ctx context.Context, k idempotency.StoreKey, fingerprint []byte, lease, ttl time.Duration) (idempotency.Claimed, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return idempotency.Claimed{}, fmt.Errorf("claim key in redis: %w", err)
	}
	defer leave()
	reply, err := s.run(ctx, claimScript, k, fingerprint, rand.Text(), micros(lease), micros(ttl)).Slice()
	if err != nil {
		return idempotency.Claimed{}, fmt.Errorf("claim key in redis: %w", unusable(err))
	}
	claimed, err := claimedOf(reply)
	if err != nil {
		return idempotency.Claimed{}, fmt.Errorf("claim key in redis: %w: %w", idempotency.ErrUnusable, err)
	}
	return claimed, nil
}

// Renew implements idempotency.Store. It is also false when Redis has lost the key.
func (s *Store) Renew(ctx context.Context, k idempotency.StoreKey, fence int64, lease time.Duration) (bool, error) {
	renewed, err := s.run(ctx, renewScript, k, fence, micros(lease)).Bool()
	if err != nil {
		return false, fmt.Errorf("renew lease in redis: %w", unusable(err))
	}
	return renewed, nil
}

// Finish implements idempotency.Store. It is also false when Redis has lost the key: what fingerprint the answer would
// belong to is lost as well.
func (s *Store) Finish(ctx context.Context, k idempotency.StoreKey, fence int64, a idempotency.StoredAnswer, ttl time.Duration) (bool, error) {
	_, finished, err := s.FinishUntil(ctx, k, fence, a, ttl)
	return finished, err
}

// FinishUntil implements idempotency.ExpiryStore.
func (s *Store) FinishUntil(ctx context.Context, k idempotency.StoreKey, fence int64, a idempotency.StoredAnswer, ttl time.Duration) (expiresAt time.Time, mine bool, err error) {
	headers, err := headersText(a.Header)
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer in redis: %w", err)
	}
	until, err := s.run(ctx, finishScript, k, fence, micros(ttl), a.Status, headers, a.Body, a.BodyHash, strconv.FormatBool(a.Omitted), a.ResultRef).Text()
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer in redis: %w", unusable(err))
	}
	if until == "" {
		return expiresAt, false, nil
	}
	micros, err := strconv.ParseInt(until, 10, 64)
	if err != nil {
		return expiresAt, false, fmt.Errorf("store answer in redis: %w: read expiry: %w", idempotency.ErrUnusable, err)
	}
	return time.UnixMicro(micros), true, nil
}

// Release implements idempotency.Store.
func (s *Store) Release(ctx context.Context, k idempotency.StoreKey, fence int64) error {
	if err := s.run(ctx, releaseScript, k, fence).Err(); err != nil {
		return fmt.Errorf("release key in redis: %w", unusable(err))
	}
	return nil
}

// run runs a script on a key: by its hash, and as a whole where Redis does not have it (any more).
func (s *Store) run(ctx context.Context, script *redis.Script, k idempotency.StoreKey, args ...any) *redis.Cmd {
	return script.Run(ctx, s.client, []string{nameOf(s.prefix, k)}, args...)
}

// unusable marks the error of a script that found something else than a hash under the key's name. Before Redis 7 the
// word stands in the middle of the message.
func unusable(err error) error {
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%w: %w", idempotency.ErrUnusable, err)
	}
	return err
}

// micros is a span as scripts count it, rounded up to what Redis can expire.
func micros(d time.Duration) int64 { return max(d.Microseconds(), 1000) }
