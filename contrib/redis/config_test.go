package redisstore

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestConfig_NewReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	for name, row := range map[string]struct {
		client redis.UniversalClient
		config Config
		want   []string
	}{
		"no client":            {nil, Config{}, []string{"client is nil"}},
		"a client that is nil": {(*redis.Client)(nil), Config{}, []string{"client is nil"}},
		"a ring":               {ring, Config{Prefix: "{a}"}, []string{"client is a redis.Ring", `prefix is "{a}"`}},
		"a long prefix":        {nil, Config{Prefix: strings.Repeat("x", 65)}, []string{"client is nil", "at most 64 bytes"}},
		"a prefix with blanks": {nil, Config{Prefix: "a b"}, []string{"visible ASCII"}},
		"a prefix with a byte": {nil, Config{Prefix: "\xff"}, []string{"visible ASCII"}},
	} {
		store, err := New(row.client, row.config)
		for _, want := range row.want {
			if store != nil || err == nil || !strings.HasPrefix(err.Error(), "redis store config: ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: err = %v, want it to have %q", name, err, want)
			}
		}
	}
}

func TestConfig_TheCheckSaysByWhatARedisMayForgetKeys(t *testing.T) {
	b := setup(t, "--maxmemory-policy", "allkeys-lru")
	err := b.store.Check(t.Context())
	for _, want := range []string{"redis evicts keys when its memory is full, by maxmemory-policy allkeys-lru: set noeviction", "set appendonly yes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %v, want it to have %q", err, want)
		}
	}
	for option, value := range map[string]string{"maxmemory-policy": "noeviction", "appendonly": "yes"} {
		if err := b.client.ConfigSet(t.Context(), option, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.store.Check(t.Context()); err != nil {
		t.Errorf("err = %v", err)
	}
	b.server.Kill()
	if err := b.store.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "read configuration of redis: ") {
		t.Errorf("err = %v", err)
	}
}

func TestConfig_AReplicaIsNoPlaceForKeys(t *testing.T) {
	t.Parallel()
	if got := forgets(fieldsOf("# Replication\r\nrole:slave\r\n")); len(got) != 1 || got[0] != "is a slave: connect to its master" {
		t.Errorf("got %q", got)
	}
	if got := forgets(fieldsOf("redis_version:7.0.15\r\n\r\n")); got != nil {
		t.Errorf("what does not say much of itself has problems %q", got)
	}
}
