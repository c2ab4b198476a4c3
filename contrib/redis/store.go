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

	"github.com/holdfast-go/holdfast/idempotency/store"
)

// defaultPrefix is the default of Config.Prefix.
const defaultPrefix = "idempotency:"

// Config configures a Store. The zero Config works.
type Config struct {
	// Prefix begins the names of all keys. It separates services that share a Redis. At most 64 bytes of visible ASCII
	// without braces. Defaults to "idempotency:".
	Prefix string
}

// Store keeps idempotency keys in Redis, for idempotency.NewEphemeral. The package's comment says what it promises.
// Many goroutines and many processes may use it at once.
type Store struct {
	client      redis.UniversalClient
	prefix      string
	claims      chan struct{} // holds a token for each Claim in progress
	poolTimeout time.Duration // how long a Claim waits for room there
}

var _ store.Store = (*Store)(nil)

// New makes a Store on a client. The client stays the caller's: its timeouts and its pool decide how long a request
// waits for Redis. Set ContextTimeoutEnabled, so that a request does not wait longer than its own context. New refuses
// a redis.Ring, which sends the keys of a missing node to another node, where they are new.
//
// Claims use at most half of the pool's connections, and wait up to PoolTimeout for one of them. The other half is for
// requests that have a key. Otherwise many repeats at once could stop the running request from storing its answer, and
// after its lease the next one would run too. Give the pool two connections or more.
func New(client redis.UniversalClient, c Config) (*Store, error) {
	var problems []error
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
		problems = append(problems, errors.New("client is nil: it must be connected to Redis"))
	}
	if _, ring := client.(*redis.Ring); ring {
		problems = append(problems, errors.New("client is a redis.Ring: it must be a Client or a ClusterClient: a Ring looks for the keys of a missing node on another one"))
	}
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if len(c.Prefix) > 64 || strings.IndexFunc(c.Prefix, func(r rune) bool { return r <= ' ' || r > '~' || r == '{' || r == '}' }) >= 0 {
		problems = append(problems, fmt.Errorf("prefix is %q: it must be at most 64 bytes of visible ASCII without braces", c.Prefix))
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("redis store config: %w", errors.Join(problems...))
	}
	connections, poolTimeout := poolOf(client)
	return &Store{
		client:      client,
		prefix:      c.Prefix,
		claims:      make(chan struct{}, max(connections/2, 1)),
		poolTimeout: poolTimeout,
	}, nil
}

// poolOf returns how many connections a client has to one Redis, and how long it waits for one of them.
func poolOf(client redis.UniversalClient) (connections int, poolTimeout time.Duration) {
	switch c := client.(type) {
	case *redis.Client:
		connections, poolTimeout = c.Options().PoolSize, c.Options().PoolTimeout
	case *redis.ClusterClient:
		connections, poolTimeout = c.Options().PoolSize, c.Options().PoolTimeout
	}
	if connections <= 0 {
		connections = 5 * runtime.GOMAXPROCS(0) // the smallest default pool of go-redis
	}
	if poolTimeout <= 0 {
		poolTimeout = 6 * time.Second // go-redis' default
	}
	return connections, poolTimeout
}

// errNoRoom says that too many claims were in progress. Nothing was sent to Redis.
var errNoRoom = errors.New("no connection became free for a claim")

// enter waits for room for a Claim; leave releases it.
func (s *Store) enter(ctx context.Context) (leave func(), err error) {
	timer := time.NewTimer(s.poolTimeout)
	defer timer.Stop()
	select {
	case s.claims <- struct{}{}:
		return func() { <-s.claims }, nil
	case <-timer.C:
		return nil, errNoRoom
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Claim implements store.Store. Redis removes expired keys, so Claimed.Expired is never set.
func (s *Store) Claim(ctx context.Context, k store.Key, fingerprint []byte, lease, ttl time.Duration) (store.Claimed, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return store.Claimed{}, fmt.Errorf("claim key in redis: %w", err)
	}
	defer leave()
	reply, err := s.run(ctx, claimScript, k, fingerprint, rand.Text(), micros(lease), micros(ttl)).Slice()
	if err != nil {
		return store.Claimed{}, fmt.Errorf("claim key in redis: %w", unusable(err))
	}
	claimed, err := claimedOf(reply)
	if err != nil {
		return store.Claimed{}, fmt.Errorf("claim key in redis: %w: %w", store.ErrUnusable, err)
	}
	return claimed, nil
}

// Renew implements store.Store. It also returns false if Redis has lost the key.
func (s *Store) Renew(ctx context.Context, k store.Key, fence int64, lease time.Duration) (bool, error) {
	renewed, err := s.run(ctx, renewScript, k, fence, micros(lease)).Bool()
	if err != nil {
		return false, fmt.Errorf("renew lease in redis: %w", unusable(err))
	}
	return renewed, nil
}

// Finish implements store.Store. It also returns false if Redis has lost the key, because the fingerprint is lost
// too.
func (s *Store) Finish(ctx context.Context, k store.Key, fence int64, a store.Answer, ttl time.Duration) (expiresAt time.Time, mine bool, err error) {
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
		return expiresAt, false, fmt.Errorf("store answer in redis: %w: read expiry: %w", store.ErrUnusable, err)
	}
	return time.UnixMicro(micros), true, nil
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, k store.Key, fence int64) error {
	if err := s.run(ctx, releaseScript, k, fence).Err(); err != nil {
		return fmt.Errorf("release key in redis: %w", unusable(err))
	}
	return nil
}

// run runs a script on a key: by its hash, or in full if Redis does not have it.
func (s *Store) run(ctx context.Context, script *redis.Script, k store.Key, args ...any) *redis.Cmd {
	return script.Run(ctx, s.client, []string{nameOf(s.prefix, k)}, args...)
}

// unusable marks the error of a script that found something other than a hash under the key's name. Before Redis 7 the
// word is in the middle of the message.
func unusable(err error) error {
	if strings.Contains(err.Error(), "WRONGTYPE") {
		return fmt.Errorf("%w: %w", store.ErrUnusable, err)
	}
	return err
}

// micros is a duration in the unit of the scripts, rounded up to what Redis can expire.
func micros(d time.Duration) int64 { return max(d.Microseconds(), 1000) }
