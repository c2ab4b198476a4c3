package faultproxy

import (
	"errors"
	"io"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestFault_WhatGoesTheLostWayArrivesAfterTheHealAndTheOtherWayWorks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault Fault
		lost  direction
	}{{LoseUp(), up}, {LoseDown(), down}} {
		t.Run(c.fault.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			from, to := b.pair()
			if c.lost == down {
				from, to = to, from
			}
			b.set(c.fault)
			b.send(from, "lost")
			b.eventually("the bytes are held", func() bool { return b.Counts().Held == 4 })
			b.send(to, "the other way")
			b.gets(from, "the other way")
			b.getsNothing(to)
			b.send(from, ", found")
			b.set(Pass())
			b.gets(to, "lost, found")
			b.send(from, " and on")
			b.gets(to, " and on")
		})
	}
}

func TestFault_AServerMissesItsClientsEndWhileTheWayUpIsLost(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*net.TCPConn){
		"closed": func(c *net.TCPConn) {},
		"reset":  func(c *net.TCPConn) { _ = c.SetLinger(0) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			client, server := b.pair()
			b.set(LoseUp())
			b.send(client, "commit")
			b.eventually("the bytes are held", func() bool { return b.Counts().Held == 6 })
			leave(client)
			_ = client.Close()
			for range 3 { // the second of them comes back with a reset, which is lost too
				b.send(server, "answer")
			}
			b.getsNothing(server)
			b.set(Pass())
			b.gets(server, "commit")
			if _, err := server.Read(make([]byte, 1)); err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, reset) {
				t.Errorf("the client's end did not arrive: %v", err)
			}
		})
	}
}

func TestFault_PassAnewLetsNothingArriveThatWasHeld(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(Blackhole())
	b.send(client, "lost")
	b.send(server, "lost as well")
	b.eventually("the bytes are held", func() bool { return b.Counts().Held == 16 })
	if n, err := b.PassAnew(); n != 1 || err != nil {
		t.Fatalf("PassAnew = %d, %v; want 1", n, err)
	}
	b.endsWith(client, "", reset)
	b.endsWith(server, "", reset)
	b.pair()
	if n := b.Counts().Resets; n != 1 {
		t.Errorf("%d resets are counted, want 1", n)
	}
}

func TestFault_NewConnectionsGetNoAnswerWhileAnyWayIsLost(t *testing.T) {
	t.Parallel()
	for _, f := range []Fault{Blackhole(), LoseUp(), LoseDown()} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.set(f)
			patient, hasty := b.dial(), b.dial()
			b.send(patient, "patient")
			b.send(hasty, "hasty")
			_ = hasty.Close()
			b.eventually("the hasty client is gone", func() bool { c := b.Counts(); return c.Unanswered == 2 && c.Open == 1 && c.Held == 12 })
			if len(b.accepted) != 0 {
				t.Fatal("the server was told of a connection")
			}
			b.set(Pass())
			b.gets(b.arrival(b.accepted), "patient")
			b.pair()
		})
	}
}

func TestFault_RefuseRefusesNewConnectionsAndKeepsTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(Refuse())
	b.set(Refuse())
	if c, err := net.Dial("tcp", b.Address()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("dial: %v, %v; want refused", c, err)
	}
	b.send(client, "still")
	b.gets(server, "still")
	b.set(Slow(0, 0))
	b.pair()
	b.set(Refuse())
	taken, err := net.Listen("tcp", b.Address())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Set(Pass()); err == nil || b.Fault().kind != refuse {
		t.Errorf("%s while another has the port: %v", b.Fault(), err)
	}
	_ = taken.Close()
	b.set(Pass())
	b.pair()
}

func TestFault_ResetResetsBothSidesOfAllConnectionsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, f := range []Fault{Pass(), Slow(time.Hour, 1), Blackhole(), Refuse()} {
		b.set(Pass())
		client, server := b.pair()
		other, _ := b.pair()
		b.set(f)
		if n := b.Reset(); n != 2 {
			t.Errorf("%s: %d connections were reset, want 2", f, n)
		}
		if n := b.Reset(); n != 0 {
			t.Errorf("%s: %d connections were reset again", f, n)
		}
		b.endsWith(client, "", reset)
		b.endsWith(server, "", reset)
		b.endsWith(other, "", reset)
	}
	if n := b.Counts().Resets; n != 8 {
		t.Errorf("%d resets are counted, want 8", n)
	}
}

func TestFault_ConnectionsEndAfterAsManyBytesAsTheSeedSays(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789", 100)
	for _, c := range []struct {
		name    string
		fault   func(seed uint64) Fault
		ends    error
		counted func(Counts) int64
	}{
		{"ResetAfter", func(seed uint64) Fault { return ResetAfter(100, 900, seed) }, reset, func(c Counts) int64 { return c.Resets }},
		{"TruncateDown", func(seed uint64) Fault { return TruncateDown(100, 900, seed) }, io.EOF, func(c Counts) int64 { return c.Truncated }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lengths := func(seed uint64) (all []int) {
				b := setup(t)
				for range 4 {
					client, server := b.pair()
					b.set(c.fault(seed)) // the count begins here, for those that are open too
					b.send(server, text)
					got, err := io.ReadAll(client)
					if err == nil {
						err = io.EOF
					}
					if !errors.Is(err, c.ends) || !strings.HasPrefix(text, string(got)) {
						t.Fatalf("%d bytes and %v, want a beginning and %v", len(got), err, c.ends)
					}
					if len(got) < 100 || len(got) > 900 {
						t.Errorf("%d bytes arrived, want 100 to 900", len(got))
					}
					all = append(all, len(got))
					b.set(Pass())
				}
				b.eventually("all are counted", func() bool { return c.counted(b.Counts()) == 4 })
				return all
			}
			once, again, other := lengths(1), lengths(1), lengths(2)
			same := true
			for i := range once {
				if once[i] != again[i] {
					t.Errorf("with the same seed %v and %v bytes arrived", once, again)
				}
				same = same && once[i] == other[i]
			}
			if same || once[0] == once[1] && once[1] == once[2] {
				t.Errorf("the seed says nothing: %v, %v", once, other)
			}
		})
	}
}

func TestFault_ResetAfterCountsBothWays(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(ResetAfter(10, 10, 0))
	b.send(client, "12345")
	b.gets(server, "12345")
	b.send(server, "67890")
	b.endsWith(client, "67890", reset)
	b.endsWith(server, "", reset)
}

func TestFault_ATruncationCountsItsOwnWayOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(TruncateDown(3, 3, 0))
	b.send(client, "a long question")
	b.gets(server, "a long question")
	b.send(server, "answer")
	b.endsWith(client, "ans", io.EOF)

	client, server = b.pair()
	b.set(TruncateUp(3, 3, 0))
	b.send(server, "a long greeting")
	b.gets(client, "a long greeting")
	b.send(client, "question")
	b.endsWith(server, "que", io.EOF)
	b.eventually("both are counted", func() bool { return b.Counts().Truncated == 2 })
}

func TestFault_ResetWithinResetsOpenAndNewConnectionsUntilItIsOver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	open, _ := b.pair()
	b.set(ResetWithin(10*time.Millisecond, 50*time.Millisecond, 1))
	b.endsWith(open, "", reset)
	b.eventually("it is counted", func() bool { return b.Counts().Resets == 1 })
	fresh, err := net.Dial("tcp", b.Address())
	if err == nil {
		b.endsWith(b.own(fresh.(*net.TCPConn)), "", reset)
	} else if !errors.Is(err, reset) {
		t.Error(err)
	}
	b.eventually("it is counted", func() bool { return b.Counts().Resets == 2 })
	// One that is over before it resets anything does not come back; another proxy tells when its time would have come.
	var client, server *net.TCPConn
	b, later := setup(t), setup(t)
	other, _ := later.pair()
	for inTime := false; !inTime; {
		client, server = b.pair()
		began := time.Now()
		b.set(ResetWithin(2*time.Second, 2*time.Second, 1))
		b.set(Pass())
		inTime = time.Since(began) < 2*time.Second // else a machine that stood still has let it reset them
	}
	later.set(ResetWithin(2*time.Second, 2*time.Second, 1))
	b.endsWith(other, "", reset)
	b.send(client, "alive")
	b.gets(server, "alive")
}

func TestFault_SlowDelaysEachWayAndLetsBytesTravelSideBySide(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	const latency = 300 * time.Millisecond
	b.set(Slow(latency, 0))
	began := time.Now()
	b.send(client, "there")
	b.gets(server, "there")
	b.send(server, "back")
	b.gets(client, "back")
	if took := time.Since(began); took < 2*latency {
		t.Errorf("there and back took %s, want %s or more", took, 2*latency)
	}
	began = time.Now()
	go func() {
		for range 50 {
			_, _ = io.WriteString(client, "x")
			time.Sleep(time.Millisecond) // sleep: so that a real socket gives them one by one
		}
	}()
	b.gets(server, strings.Repeat("x", 50))
	if took := time.Since(began); took > 40*latency {
		t.Errorf("50 small writes one after the other took %s: each waits for the one before", took)
	}
	if n := b.Counts().Delayed; n != 59 {
		t.Errorf("%d bytes were delayed, want 59", n)
	}
}

func TestFault_SlowLetsNoMoreThroughThanItsRate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(Slow(0, 1<<20))
	began := time.Now()
	go func() { _, _ = client.Write(make([]byte, 300<<10)) }()
	b.gets(server, strings.Repeat("\x00", 300<<10))
	if took := time.Since(began); took < 290*time.Millisecond {
		t.Errorf("300 KiB at 1 MiB/s took %s", took)
	}
}

func TestFault_WhatIsOnASlowWayArrivesAtOnceAfterTheHeal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	b.set(Slow(time.Hour, 1))
	b.send(client, "slow")
	b.eventually("it is on its way", func() bool { return b.Counts().Delayed == 4 })
	b.set(LoseUp())
	b.send(client, " and lost")
	b.eventually("it is held", func() bool { return b.Counts().Held == 9 })
	b.getsNothing(server)
	b.set(Slow(0, 0))
	b.gets(server, "slow and lost")
}

func TestFault_AFaultThatEndsAtOnceHoldsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	client, server := b.pair()
	for range 3000 {
		b.set(LoseUp())
		b.send(client, "x")
		b.set(Pass())
		b.gets(server, "x")
	}
}

func TestFault_AFaultOutOfItsRangeIsRefusedWithAllThatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		fault Fault
		want  []string
	}{
		{Slow(-1, -2), []string{"latency is -1ns", "bytesPerSecond is -2"}},
		{TruncateDown(-3, -4, 0), []string{"least is -3", "most is -4"}},
		{ResetAfter(2, 1, 0), []string{"most is 1: it must not be below least"}},
		{ResetWithin(2, 1, 0), []string{"most is 1"}},
		{TruncateDown(0, math.MaxInt64, 0), []string{"most is 9223372036854775807"}},
		{CutCommit("now", Cuts{Chance: 2, Most: -1}), []string{"moment is now", "Chance is 2", "Most is -1"}},
	} {
		err := b.Set(c.fault)
		if err == nil {
			t.Errorf("%s is taken", c.fault)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", c.fault, err, want)
			}
		}
	}
	if b.Fault().kind != pass {
		t.Errorf("%s is in force", b.Fault())
	}
	if got := Slow(time.Second, 7).String() + ", " + LoseUp().String() + ", " + (Fault{}).String(); got != "slow by 1s, 7 bytes/s, lose up, pass" {
		t.Errorf("they are called %q", got)
	}
}
