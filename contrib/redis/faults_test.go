package redisstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/contrib/redis/internal/redistest"
	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// impatient is a client that waits a second for an answer, which a busy Redis may need, and sends nothing again.
func impatient(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Second, -1 }

func TestFaults_AClaimWhoseAnswerIsLostIsSentAgainAndIsStillMine(t *testing.T) {
	b := setup(t)
	proxy := redistest.NewProxy(t, b.server.Addr)
	b.store = storeOn(t, b.server.Client(func(o *redis.Options) { o.Addr = proxy.Addr }))
	b.mine(store.Key{Key: "warm"}, asked) // the connection and the script are there
	proxy.LoseNext()
	c := b.mine(one, asked)
	if !proxy.Lost() || c.Attempt != 1 {
		t.Fatalf("claimed %+v, answer lost: %t", c, proxy.Lost())
	}
	b.busy(one, asked, asked)

	proxy.LoseNext()
	b.is(true)(b.store.Renew(t.Context(), one, c.Fence, long))
	finishing := store.Key{Key: "warm too"}
	b.is(true)(b.finish(finishing, b.mine(finishing, asked).Fence, answerOf("x"))) // the script is there
	proxy.LoseNext()
	b.is(true)(b.finish(one, c.Fence, answerOf("x")))
	if !proxy.Lost() {
		t.Error("no answer was lost")
	}
	proxy.LoseNext()
	if b.answered(one, answerOf("x")); !proxy.Lost() {
		t.Error("no answer was lost")
	}
}

func TestFaults_AClaimThatEndsInAnErrorIsFreeAgainWhenItsLeaseRunsOut(t *testing.T) {
	b := setup(t)
	proxy := redistest.NewProxy(t, b.server.Addr)
	lossy := storeOn(t, b.server.Client(impatient, func(o *redis.Options) { o.Addr = proxy.Addr }))
	wait.Until(t, "the connection and the script are there", func() bool {
		_, err := lossy.Claim(t.Context(), store.Key{Key: "warm"}, asked, long, day)
		return err == nil
	})
	proxy.LoseNext()
	if c, err := lossy.Claim(t.Context(), one, asked, long, day); err == nil || c.Mine || errors.Is(err, store.ErrUnusable) {
		t.Fatalf("claimed %+v, %v: want only an error", c, err)
	}
	wait.Until(t, "Redis has answered", proxy.Lost)
	b.busy(one, asked, asked) // it was carried out
	b.runOut(one)
	if next := b.mine(one, asked); next.Attempt != 2 {
		t.Errorf("claimed %+v", next)
	}
}

func TestFaults_AClaimThatArrivesAgainHasItsWholeLease(t *testing.T) {
	b := setup(t)
	c, err := b.store.Claim(t.Context(), one, asked, time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b.runOut(one)
	reply, err := b.store.run(t.Context(), claimScript, one, asked, b.kept(one)["token"], micros(time.Hour), micros(time.Hour)).Slice()
	if want := []any{"mine", strconv.FormatInt(c.Fence, 10), "1"}; err != nil || !slices.Equal(reply, want) {
		t.Errorf("got %v, %v, want %v", reply, err, want)
	}
	b.busy(one, asked, asked)
	if left := b.client.PTTL(t.Context(), nameOf(defaultPrefix, one)).Val(); left < 59*time.Minute {
		t.Errorf("the key ends in %s, before its lease", left)
	}
}

func TestFaults_AReleasedClaimThatArrivesAgainStaysReleased(t *testing.T) {
	b := setup(t)
	c := b.mine(one, asked)
	token := b.kept(one)["token"]
	if err := b.store.Release(t.Context(), one, c.Fence); err != nil {
		t.Fatal(err)
	}
	b.unchanged(one, func() {
		reply, err := b.store.run(t.Context(), claimScript, one, asked, token, micros(long), micros(day)).Slice()
		if err != nil || reply[0] != "busy" {
			t.Errorf("got %v, %v", reply, err)
		}
	})
	b.mine(one, asked)
}

func TestFaults_ConnectionsThatAreKilledCostNoClaimTwiceAndNoneAtAll(t *testing.T) {
	b := setup(t)
	stores := []*Store{storeOn(t, b.server.Client()), storeOn(t, b.server.Client())}
	var mine, unknown, ended, killed atomic.Int64
	var all sync.WaitGroup
	const keys = 200
	for i := range keys {
		for _, s := range stores {
			all.Go(func() {
				c, err := s.Claim(t.Context(), store.Key{Key: strconv.Itoa(i)}, asked, long, day)
				switch {
				case err != nil:
					unknown.Add(1)
				case c.Mine:
					mine.Add(1)
				}
				if ended.Add(1)%20 == 0 {
					killed.Add(b.client.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Val())
				}
			})
		}
	}
	all.Wait()
	if killed.Load() == 0 {
		t.Error("no connection was killed")
	}
	// Each key is one caller's; where that one was told an error, nobody's.
	if mine.Load() > keys || mine.Load()+unknown.Load() < keys {
		t.Errorf("%d claims are mine and %d unknown, of %d keys", mine.Load(), unknown.Load(), keys)
	}
	t.Logf("%d connections were killed: %d claims are mine and %d unknown, of %d keys", killed.Load(), mine.Load(), unknown.Load(), keys)
}

func TestFaults_ARedisSlowerThanItsClientGivesAKeyToNobodyTwice(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	b := setup(t)
	admin := b.server.Client()
	for _, row := range []struct {
		name        string
		stop, start func()
	}{
		{"asleep", func() {
			go admin.Do(context.WithoutCancel(t.Context()), "DEBUG", "SLEEP", "4")
			probe := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = 50*time.Millisecond, -1 })
			wait.Until(t, "it sleeps, and answers nobody", func() bool { return probe.Ping(t.Context()).Err() != nil })
		}, func() {
			wait.Until(t, "it is awake", func() bool { return admin.Ping(t.Context()).Err() == nil })
		}},
		{"paused", func() {
			if err := admin.Do(t.Context(), "CLIENT", "PAUSE", "60000", "WRITE").Err(); err != nil {
				t.Fatal(err)
			}
		}, func() {
			if err := admin.ClientUnpause(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		s := storeOn(t, b.server.Client(impatient))
		wait.Until(t, "the connection and the script are there", func() bool {
			_, err := s.Claim(t.Context(), store.Key{Key: "warm"}, asked, long, day)
			return err == nil
		})
		// On a busy machine it may be awake again, or not yet asleep, when it is asked: then that shows nothing.
		var k store.Key
		for try := 1; ; try++ {
			k = store.Key{Key: fmt.Sprint(row.name, try)}
			row.stop()
			c, err := s.Claim(t.Context(), k, asked, 200*time.Millisecond, day)
			row.start()
			if err != nil && !c.Mine {
				break
			}
			if try == 5 {
				t.Fatalf("%s: claimed %+v, %v: want an error in time", row.name, c, err)
			}
		}
		// The claim may have been carried out or not. Another gets the key when its lease has run out: a patient one, whose own
		// claim is not carried out without its hearing of it.
		var got store.Claimed
		wait.Until(t, "the key is free", func() bool {
			got = b.claim(k, asked)
			return got.Mine
		})
		b.busy(k, asked, asked)
		b.is(true)(b.finish(k, got.Fence, answerOf("x")))
	}
}

func TestFaults_ARedisWithAnAppendOnlyFileRemembersAClaimOverACrash(t *testing.T) {
	b := setup(t, "--appendonly", "yes", "--appendfsync", "always")
	c := b.mine(one, asked)
	answered := store.Key{Key: "answered"}
	b.is(true)(b.finish(answered, b.mine(answered, asked).Fence, answerOf("y")))
	b.server.Restart()
	b.busy(one, asked, asked)
	b.is(true)(b.finish(one, c.Fence, answerOf("x")))
	b.answered(one, answerOf("x"))
	b.answered(answered, answerOf("y"))
}

// This is the promise that is weaker: what Redis forgets is new.
func TestFaults_ARedisWithoutAnAppendOnlyFileForgetsKeysInACrash(t *testing.T) {
	b := setup(t)
	c := b.mine(one, asked)
	answered := store.Key{Key: "answered"}
	b.is(true)(b.finish(answered, b.mine(answered, asked).Fence, answerOf("y")))
	b.server.Restart()
	b.is(false)(b.store.Renew(t.Context(), one, c.Fence, long))
	b.is(false)(b.finish(one, c.Fence, answerOf("x")))
	if again := b.mine(one, asked); again.Fence <= c.Fence || again.Attempt != 1 {
		t.Errorf("claimed %+v after %+v", again, c)
	}
	b.mine(answered, asked)
}

func TestFaults_ARedisThatIsAwayIsAnErrorAndNoClaim(t *testing.T) {
	b := setup(t, "--appendonly", "yes", "--appendfsync", "always")
	fence := b.mine(one, asked).Fence
	b.server.Kill()
	_, claiming := b.store.Claim(t.Context(), one, asked, long, day)
	_, renewing := b.store.Renew(t.Context(), one, fence, long)
	_, finishing := b.finish(one, fence, answerOf("x"))
	for _, err := range []error{claiming, renewing, finishing, b.store.Release(t.Context(), one, fence)} {
		if err == nil || errors.Is(err, store.ErrUnusable) {
			t.Errorf("err = %v", err)
		}
	}
	b.server.Restart()
	// After as many failed dials as its pool has places (10 for each of GOMAXPROCS) the client answers at once with the
	// last error, and looks once a second whether the server is back.
	wait.Until(t, "the client knows that the server is back", func() bool { return b.client.Ping(b.Context()).Err() == nil })
	b.is(true)(b.finish(one, fence, answerOf("x")))
}

func TestFaults_APoolWithoutAFreeConnectionIsAnErrorInTime(t *testing.T) {
	b := setup(t)
	client := b.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, 20*time.Millisecond })
	s, held := storeOn(t, client), client.Conn()
	if err := held.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Claim(t.Context(), one, asked, long, day); !errors.Is(err, redis.ErrPoolTimeout) {
		t.Errorf("err = %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := s.Claim(t.Context(), one, asked, long, day); err != nil || !c.Mine {
		t.Errorf("claimed %+v, %v", c, err)
	}
}

func TestFaults_ClaimsLeaveRoomForThoseWhoHaveAKey(t *testing.T) {
	b := setup(t)
	client := b.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 4, 20*time.Millisecond })
	b.store = storeOn(t, client)
	fence := b.mine(one, asked).Fence
	for range 2 { // as many claims, on their way for as long as this takes
		leave, err := b.store.enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	if _, err := b.store.Claim(t.Context(), one, asked, long, day); !errors.Is(err, errNoRoom) {
		t.Errorf("err = %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.store.Claim(ended, one, asked, long, day); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	b.is(true)(b.store.Renew(t.Context(), one, fence, long))
	b.is(true)(b.finish(one, fence, answerOf("x")))
}

func TestFaults_AClaimThatEndsGivesItsRoomBack(t *testing.T) {
	b := setup(t)
	b.store = storeOn(t, b.server.Client(func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 2, time.Minute }))
	for i := range 10 {
		b.mine(store.Key{Key: fmt.Sprint(i)}, asked)
	}
	b.server.Kill()
	if _, err := b.store.Claim(t.Context(), one, asked, long, day); err == nil {
		t.Error("claimed without a Redis")
	}
	if n := len(b.store.claims); n != 0 {
		t.Errorf("%d claims are on their way, want none", n)
	}
}

func TestFaults_EveryClientHasRoomForAClaim(t *testing.T) {
	t.Parallel()
	single, cluster := redis.NewClient(&redis.Options{PoolSize: 1}), redis.NewClusterClient(&redis.ClusterOptions{})
	t.Cleanup(func() { _, _ = single.Close(), cluster.Close() })
	five := 5 * runtime.GOMAXPROCS(0) // connections of a cluster's client, and of one that does not say
	for client, room := range map[redis.UniversalClient]int{single: 1, cluster: five / 2, struct{ redis.UniversalClient }{single}: five / 2} {
		if s := storeOn(t, client); cap(s.claims) != room || s.poolTimeout < time.Second {
			t.Errorf("%T has room for %d claims, which wait %s; want room for %d", client, cap(s.claims), s.poolTimeout, room)
		}
	}
}

func TestFaults_AContextThatEndsEndsAClaim(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.store.Claim(ctx, one, asked, long, day); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	b.mine(one, asked)
}

func TestFaults_ScriptsThatWereFlushedAreSentAgain(t *testing.T) {
	b := setup(t)
	flush := func() {
		if err := b.client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	flush()
	c := b.mine(one, asked)
	flush()
	b.is(true)(b.store.Renew(t.Context(), one, c.Fence, long))
	flush()
	if err := b.store.Release(t.Context(), one, c.Fence); err != nil {
		t.Fatal(err)
	}
	flush()
	c = b.mine(one, asked)
	flush()
	b.is(true)(b.finish(one, c.Fence, answerOf("x")))
}

func TestFaults_ARedisWithoutMemoryRefusesClaimsAndEvictsNone(t *testing.T) {
	b := setup(t)
	b.mine(one, asked)
	if err := b.client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	two := store.Key{Key: "k2"}
	if c, err := b.store.Claim(t.Context(), two, asked, long, day); !redis.IsOOMError(err) || c.Mine {
		t.Errorf("claimed %+v, %v", c, err)
	}
	if err := b.client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	b.busy(one, asked, asked)
	b.mine(two, asked)
}

func TestFaults_AReplicaAndAMasterWithoutReplicasRefuseClaims(t *testing.T) {
	b := setup(t, "--min-replicas-to-write", "1", "--repl-diskless-sync-delay", "0")
	if c, err := b.store.Claim(t.Context(), one, asked, long, day); !redis.IsNoReplicasError(err) || c.Mine {
		t.Errorf("claimed %+v, %v", c, err)
	}
	replica := redistest.Start(t)
	host, port := "127.0.0.1", b.server.Addr[len("127.0.0.1:"):]
	if err := replica.Client().ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	onReplica := storeOn(t, replica.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = wait.Limit(), -1 })) // it sends nothing again
	if c, err := onReplica.Claim(t.Context(), one, asked, long, day); !redis.IsReadOnlyError(err) || c.Mine {
		t.Errorf("claimed %+v, %v", c, err)
	}
	wait.Until(t, "the replica follows", func() bool {
		c, err := b.store.Claim(t.Context(), one, asked, long, day)
		return err == nil && c.Mine
	})
	wait.Until(t, "the replica has the claim", func() bool {
		return replica.Client().Exists(t.Context(), nameOf(defaultPrefix, one)).Val() == 1
	})
	// The replica takes over, and knows what it has been told.
	if err := replica.Client().ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if c, err := onReplica.Claim(t.Context(), one, asked, long, day); err != nil || c.Mine || string(c.Fingerprint) != string(asked) {
		t.Errorf("claimed %+v, %v", c, err)
	}
}

func TestFaults_AClusterNeedsNothingSpecial(t *testing.T) {
	b := setup(t, "--cluster-enabled", "yes")
	if err := b.client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the cluster is up", func() bool { return b.client.Set(t.Context(), "x", "", time.Second).Err() == nil })
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{b.server.Addr}})
	t.Cleanup(func() { _ = cluster.Close() })
	b.store = storeOn(t, cluster)
	slots := map[int64]bool{}
	for i := range 50 {
		k := store.Key{Operation: "POST /charges/{id}", Key: fmt.Sprint(i)}
		c := b.mine(k, asked)
		b.is(true)(b.store.Renew(t.Context(), k, c.Fence, long))
		b.is(true)(b.finish(k, c.Fence, answerOf("x")))
		b.answered(k, answerOf("x"))
		slots[b.client.ClusterKeySlot(t.Context(), nameOf(defaultPrefix, k)).Val()] = true
	}
	if len(slots) < 40 {
		t.Errorf("50 keys share %d slots", len(slots))
	}
	if err := b.store.Check(t.Context()); err == nil {
		t.Error("a cluster without append-only files passes the check")
	}
}
