// Package cable pulls the cable of a client of Postgres: the client vanishes without a word, in the middle of what it says.
package cable

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"testing"
	"unsafe"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// PullInsideAPipeline cuts the connection of a transaction off: Postgres has carried out a part of a pipeline, read half of the
// next message, and waits for the rest, so the transaction does not count as idle. From then on whatever the server sends is
// dropped before the client's TCP sees it, probes and acknowledgements included. watch is another connection.
func PullInsideAPipeline(t testing.TB, tx pgx.Tx, watch pgtest.Querier) {
	t.Helper()
	pid, conn := int64(tx.Conn().PgConn().PID()), tx.Conn().PgConn().Conn()
	var port *int
	if err := tx.QueryRow(context.Background(), "select client_port from pg_stat_activity where pid = pg_backend_pid()").Scan(&port); err != nil {
		t.Fatal(err)
	}
	if local, ok := conn.LocalAddr().(*net.TCPAddr); !ok || port == nil || *port != local.Port {
		skip.Without(t, "a server that is reached by TCP, without a proxy before it", "use one of this machine", errors.New("a proxy's kernel would answer for the client"))
	}
	pipeline := append([]byte{'P', 0, 0, 0, 16}, "\x00select 1\x00\x00\x00"...) // Parse, whose answer nobody asks for yet
	pipeline = append(pipeline, 'P')
	pipeline = binary.BigEndian.AppendUint32(pipeline, 8<<20) // Parse, of which half comes
	if _, err := conn.Write(append(pipeline, make([]byte, 64<<10)...)); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "Postgres to read it", func() bool {
		return pgtest.Count(t, watch, "select count(*) from pg_stat_activity where pid = $1 and wait_event = 'ClientRead'", pid) == 1
	})
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "Postgres to acknowledge it", func() bool { return unacknowledged(t, raw) == 0 }) // or TCP would repeat it, and be heard
	drop := []syscall.SockFilter{{Code: syscall.BPF_RET | syscall.BPF_K}}
	//lint:ignore SA1019 its successor is a package of its own
	if cerr := raw.Control(func(fd uintptr) { err = syscall.AttachLsf(int(fd), drop) }); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// unacknowledged is how many bytes were sent that the peer has not acknowledged.
func unacknowledged(t testing.TB, raw syscall.RawConn) (bytes int32) {
	t.Helper()
	var errno syscall.Errno
	err := raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&bytes)))
	})
	if err != nil || errno != 0 {
		t.Fatal(err, errno)
	}
	return bytes
}
