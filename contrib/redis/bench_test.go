package redisstore

import (
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/contrib/redis/internal/redistest"
	"github.com/holdfast-go/holdfast/idempotency/store"
)

// The store alone, without HTTP: one round trip each. PING is what a round trip costs by itself.
func BenchmarkStore(b *testing.B) {
	server := redistest.Start(b)
	client := server.Client(func(o *redis.Options) { o.PoolSize = 64 })
	s := storeOn(b, client)
	var next atomic.Int64
	b.Run("PING", func(b *testing.B) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := client.Ping(b.Context()).Err(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pings/s")
	})
	for _, size := range []int{200, 10_000} {
		k, a := store.Key{Key: "answered " + strconv.Itoa(size)}, answerOf(strings.Repeat("x", size))
		c, err := s.Claim(b.Context(), k, asked, long, day)
		if err != nil {
			b.Fatal(err)
		}
		if _, ok, err := s.Finish(b.Context(), k, c.Fence, a, day); !ok || err != nil {
			b.Fatal(ok, err)
		}
		b.Run("replay of "+strconv.Itoa(size)+" bytes", func(b *testing.B) {
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if c, err := s.Claim(b.Context(), k, asked, long, day); err != nil || c.Answer == nil {
						b.Fatal(c, err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "replays/s")
		})
	}
	b.Run("claim and finish", func(b *testing.B) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				k := store.Key{Key: strconv.FormatInt(next.Add(1), 10)}
				c, err := s.Claim(b.Context(), k, asked, long, day)
				if err != nil || !c.Mine {
					b.Fatal(c, err)
				}
				if _, ok, err := s.Finish(b.Context(), k, c.Fence, answerOf("x"), day); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	})
}
