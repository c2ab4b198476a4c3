package idempotency

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A server, or a pooler before it, that goes away around a COMMIT says so by an error. It is no answer to the COMMIT.

// dying is a way in which that is said: the COMMIT was carried out in each.
type dying struct {
	name     string
	answered bool // what the server says of the COMMIT arrives before the error
	code     string
	message  string
}

var deaths = []dying{
	{"a server that is stopped says so before the answer has left", false, "57P01", "terminating connection due to administrator command"},
	{"a server that is stopped says so behind the answer", true, "57P01", "terminating connection due to administrator command"},
	{"a pooler has lost the server", false, "08P01", "server conn crashed?"},
	{"a server that has crashed elsewhere ends all sessions", false, "57P02", "terminating connection because of crash of another server process"},
}

// dyingConn says, instead of the answer to the next COMMIT, or behind it, that the session is over.
type dyingConn struct {
	net.Conn
	from  *bufio.Reader
	ready bytes.Buffer
	over  bool
	armed *atomic.Bool
	how   dying
}

func (c *dyingConn) Read(p []byte) (int, error) {
	for c.ready.Len() == 0 {
		if c.over {
			return 0, io.EOF
		}
		head, err := c.from.Peek(5)
		if err != nil {
			return 0, err
		}
		message := make([]byte, 1+binary.BigEndian.Uint32(head[1:]))
		if _, err := io.ReadFull(c.from, message); err != nil {
			return 0, err
		}
		commit := message[0] == 'C' && string(message[5:]) == "COMMIT\x00"
		if !commit || !c.armed.CompareAndSwap(true, false) {
			c.ready.Write(message)
			continue
		}
		if c.how.answered {
			c.ready.Write(message)
		}
		body := "SFATAL\x00VFATAL\x00C" + c.how.code + "\x00M" + c.how.message + "\x00\x00"
		c.ready.WriteByte('E')
		c.ready.Write(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))))
		c.ready.WriteString(body)
		c.over = true
	}
	return c.ready.Read(p)
}

// dyingPool is a pool whose connections die at the next COMMIT once armed.
func (b *bundle) dyingPool(how dying, armed *atomic.Bool) *pgxpool.Pool {
	b.Helper()
	config := b.db.Config().Copy()
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &dyingConn{Conn: conn, from: bufio.NewReader(conn), armed: armed, how: how}, nil
	}
	return b.poolOf(config)
}

// R28.
func TestHostileCommit_AServerLostDuringACommitHasNotSaidThatItFailed(t *testing.T) {
	for _, how := range deaths {
		t.Run(how.name, func(t *testing.T) {
			b := setup(t)
			var armed atomic.Bool
			h := b.service(b.guardOn(b.dyingPool(how, &armed)), b.charge)
			armed.Store(true)
			first := b.send(h, sent{key: "k"})
			if armed.Load() {
				t.Fatal("there was no COMMIT")
			}
			b.is(first, 201, "")
			b.same(first, b.send(h, sent{key: "k"}))
			b.kept(1, 1, 1)
		})
	}
}

// R28.
func TestHostileCommit_AServerLostDuringAStepsCommitHasNotSaidThatItFailed(t *testing.T) {
	for _, how := range deaths {
		t.Run(how.name, func(t *testing.T) {
			b := setup(t)
			var armed atomic.Bool
			h := b.stepping(b.guardOn(b.dyingPool(how, &armed)), Route{Lease: aLease}, func(ctx context.Context) error {
				b.runs.Add(1)
				armed.Store(true)
				_, err := Step(ctx, "one", insertAmount("10"))
				return err
			})
			b.is(b.send(h, sent{key: "k"}), 201, "")
			if armed.Load() || b.runs.Load() != 1 {
				t.Errorf("there was no COMMIT, or the handler ran %d times", b.runs.Load())
			}
			b.kept(1, 0, 1)
		})
	}
}
