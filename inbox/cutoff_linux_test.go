package inbox

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// cutOff makes a connection deaf: whatever the server sends, its acknowledgements and probes included, is dropped before TCP
// sees it. So the client answers nothing, as if its cable had been pulled.
func cutOff(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}
	//lint:ignore SA1019 its successor is a package of its own
	if cerr := raw.Control(func(fd uintptr) { err = syscall.AttachLsf(int(fd), drop) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// A node vanishes in the middle of a pipeline: Postgres has carried out a part of it, read half of the next message, and waits for
// the rest. It holds the fence, and does not count as idle.
func TestANodeCutOffInsideAPipelineFreesItsFence(t *testing.T) {
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout, c.Grace = time.Second, time.Second })
	rn := in.receiver.runner
	release, held := make(chan struct{}), make(chan *fence, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rn.transactHandler(context.Background(), func(tx pgx.Tx) error {
			f := &fence{Assignment: Assignment{Topic: "orders"}, number: 4711}
			if _, err := tx.Exec(context.Background(), in.sql.fenceShared, int32(fenceClass), f.number); err != nil {
				t.Error(err)
			}
			var port int
			if err := tx.QueryRow(context.Background(), "select client_port from pg_stat_activity where pid = pg_backend_pid()").Scan(&port); err != nil {
				t.Error(err)
			}
			conn := tx.Conn().PgConn().Conn()
			if port != conn.LocalAddr().(*net.TCPAddr).Port {
				close(held) // A proxy's kernel would answer the probes.
				return nil
			}
			pipeline := append([]byte{'P', 0, 0, 0, 16}, "\x00select 1\x00\x00\x00"...) // Parse, whose answer nobody asks for yet
			pipeline = append(pipeline, 'P')
			pipeline = binary.BigEndian.AppendUint32(pipeline, 8<<20) // Parse, of which half comes
			if _, err := conn.Write(append(pipeline, make([]byte, 64<<10)...)); err != nil {
				t.Error(err)
			}
			wait.Until(t, "Postgres to read it", func() bool {
				return b.count("select count(*) from pg_stat_activity where pid = $1 and wait_event = 'ClientRead'", int64(tx.Conn().PgConn().PID())) == 1
			})
			cutOff(t, conn)
			held <- f
			<-release
			return context.Canceled
		})
	}()
	defer func() { close(release); <-ended }()
	f, ok := <-held
	if !ok {
		skip.Without(t, "a server without a proxy before it", "use one of this machine", errors.New("a proxy's kernel would answer for the node"))
	}
	begun, bound := time.Now(), idleTimeout(in.c)
	free := func() bool {
		return b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and objid = $2 and database = (select oid from pg_database where datname = current_database())", int64(fenceClass), int64(f.number)) == 0
	}
	if !wait.For(2*bound, free) {
		t.Fatalf("the fence is held after %s, want at most %s", time.Since(begun), bound)
	}
	if took := time.Since(begun); took > bound+time.Second {
		t.Errorf("the fence was held for %s, want at most %s", took, bound)
	} else {
		t.Logf("freed after %s; the bound is %s", took, bound)
	}
}
