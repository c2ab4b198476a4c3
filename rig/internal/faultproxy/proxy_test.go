package faultproxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

func TestProxy_EveryByteArrivesInOrderWhateverTheFaults(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.Uint64().Draw(r, "seed")
		faults := rapid.SliceOfN(rapid.SampledFrom([]Fault{
			Pass(), LoseUp(), LoseDown(), Blackhole(), Slow(time.Millisecond, 0), Slow(0, 8<<20), Refuse(),
			ResetWithin(time.Hour, time.Hour, 1), CutCommit(Before, Cuts{}), TruncateDown(1<<40, 1<<40, 1),
		}), 0, 5).Draw(r, "faults")
		texts := [2][]byte{random(seed, rapid.IntRange(0, 400_000).Draw(r, "up")), random(seed+1, rapid.IntRange(0, 400_000).Draw(r, "down"))}
		largest := rapid.SampledFrom([]int{1, 7, 1000, 70_000}).Draw(r, "largest piece")
		client := b.dial()
		defer client.Close()
		server := b.arrival(b.accepted)
		defer server.Close()

		var ends sync.WaitGroup
		var got [2][]byte
		for way, ends2 := range [2][2]*net.TCPConn{{client, server}, {server, client}} {
			from, to := ends2[0], ends2[1]
			ends.Go(func() {
				pieces := rand.New(rand.NewPCG(seed, uint64(way)))
				for rest := texts[way]; len(rest) > 0; {
					n := min(len(rest), 1+pieces.IntN(max(largest, len(texts[way])/200)))
					if _, err := from.Write(rest[:n]); err != nil {
						r.Errorf("write: %v", err)
						return
					}
					rest = rest[n:]
				}
				_ = from.CloseWrite()
			})
			ends.Go(func() {
				var err error
				if got[way], err = io.ReadAll(to); err != nil {
					r.Errorf("read: %v", err)
				}
			})
		}
		for _, f := range faults {
			b.set(f)
		}
		b.set(Pass())
		ends.Wait()
		for way := range got {
			if !bytes.Equal(got[way], texts[way]) {
				r.Fatalf("%d bytes went in direction %d and %d arrived, or others", len(texts[way]), way, len(got[way]))
			}
		}
	})
	b.eventually("no link is left", func() bool { return b.Counts().Open == 0 })
}

func random(seed uint64, n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestProxy_AHalfClosedConnectionStillCarriesTheOtherWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	_ = client.CloseWrite()
	b.endsWith(server, "", io.EOF)
	b.send(server, "the answer")
	_ = server.Close()
	b.endsWith(client, "the answer", io.EOF)
	b.eventually("the link is gone", func() bool { return b.Counts().Open == 0 })
}

func TestProxy_ALastWordArrivesAlthoughTheClientWritesOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.send(server, "terminating connection")
	_ = server.Close()
	for range 100 { // the server is gone: what is written to it comes back as a reset
		if _, err := client.Write([]byte("select 1")); err != nil {
			break
		}
	}
	b.gets(client, "terminating connection")
}

func TestProxy_AResetIsPassedOnAsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	_ = server.SetLinger(0)
	_ = server.Close()
	b.endsWith(client, "", reset)
	client, server = b.pair()
	_ = client.SetLinger(0)
	_ = client.Close()
	b.endsWith(server, "", reset)
	if n := b.Counts().Resets; n != 0 {
		t.Errorf("%d resets are counted as the proxy's", n)
	}
}

func TestProxy_SetTargetMovesNewConnectionsAndLeavesTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	other, accepted := serve(t)
	b.SetTarget(other)
	moved := b.dial()
	b.send(moved, "moved")
	b.gets(b.arrival(accepted), "moved")
	b.send(client, "stayed")
	b.gets(server, "stayed")
	if n := b.Reset(); n != 2 {
		t.Errorf("%d connections were reset, want 2", n)
	}
	if b.Target() != other {
		t.Errorf("the target is %s", b.Target())
	}
}

func TestProxy_AConnectionWhoseTargetIsAwayIsReset(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.SetTarget(l.Addr().String())
	_ = l.Close()
	c, err := net.Dial("tcp", b.Address())
	if err == nil { // else the reset came before the client looked
		b.endsWith(b.own(c.(*net.TCPConn)), "", reset)
	} else if !errors.Is(err, reset) {
		t.Error(err)
	}
	b.eventually("it is counted", func() bool { return b.Counts().Unreachable == 1 })
}

// It is not parallel: what other tests run must not be counted.
func TestProxy_CloseEndsEverythingWhateverIsGoingOn(t *testing.T) {
	for _, f := range []Fault{Pass(), LoseUp(), LoseDown(), Blackhole(), Refuse(), Slow(time.Hour, 1), ResetWithin(time.Hour, time.Hour, 1),
		ResetWithin(0, time.Millisecond, 1), TruncateDown(10, 20, 1), CutCommit(After, Cuts{})} {
		t.Run(f.String(), func(t *testing.T) {
			address, accepted := serve(t)
			running := goleak.IgnoreCurrent()
			p, err := Start(address)
			if err != nil {
				t.Fatal(err)
			}
			b := &bundle{TB: t, Proxy: p, server: address, accepted: accepted}
			client, server := b.pair()
			b.dial()
			b.set(f)
			stuffed := make(chan struct{})
			go func() { // until nobody takes any more
				defer close(stuffed)
				_, _ = client.Write(make([]byte, 16<<20))
			}()
			_, _ = server.Write([]byte("and the other way"))
			switch c, err := net.DialTimeout("tcp", b.Address(), wait.Limit()); { // one that is new
			case err == nil:
				b.own(c.(*net.TCPConn))
			case f.kind != refuse && f.kind != resetWithin: // It may be reset before its client has seen that it is there.
				t.Fatal(err)
			}
			_ = p.Close()
			_ = p.Close()
			<-stuffed
			if err := goleak.Find(running); err != nil {
				t.Error(err)
			}
			if err := p.Set(Pass()); err == nil {
				t.Error("Set after Close is taken")
			}
			if c, err := net.Dial("tcp", p.Address()); err == nil {
				_ = c.Close()
				t.Error("it answers after Close")
			}
			if n := p.Counts().Open; n != 0 {
				t.Errorf("%d connections are open", n)
			}
		})
	}
}

// BenchmarkPass is how much a second passes, beside a connection without a proxy.
func BenchmarkPass(b *testing.B) {
	for _, c := range ways(b) {
		b.Run(c.name, func(b *testing.B) {
			piece := make([]byte, 256<<10)
			b.SetBytes(int64(len(piece)))
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, 256<<10)
				for left := b.N * len(piece); left > 0; {
					n, err := c.server.Read(buf)
					if err != nil {
						b.Error(err)
						return
					}
					left -= n
				}
			}()
			for range b.N {
				if _, err := c.client.Write(piece); err != nil {
					b.Fatal(err)
				}
			}
			<-done
		})
	}
}

// BenchmarkRoundTrip is a byte there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for _, c := range ways(b) {
		b.Run(c.name, func(b *testing.B) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				one := make([]byte, 1)
				for range b.N {
					_, _ = c.server.Read(one)
					_, _ = c.server.Write(one)
				}
			}()
			one := make([]byte, 1)
			for range b.N {
				_, _ = c.client.Write(one)
				_, _ = c.client.Read(one)
			}
			<-done
		})
	}
}

type way struct {
	name           string
	client, server *net.TCPConn
}

// ways are a connection through a proxy and one without.
func ways(b *testing.B) []way {
	s := setup(b)
	client, server := s.pair()
	direct, err := net.Dial("tcp", s.server)
	if err != nil {
		b.Fatal(err)
	}
	all := []way{{"proxied", client, server}, {"direct", s.own(direct.(*net.TCPConn)), s.arrival(s.accepted)}}
	for _, w := range all {
		_ = w.client.SetDeadline(time.Time{})
		_ = w.server.SetDeadline(time.Time{})
	}
	return all
}
