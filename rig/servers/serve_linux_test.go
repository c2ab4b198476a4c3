package main

import (
	"net"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestServe_ServersEndWithTheirBinaryAndTheRestWithTheOwner(t *testing.T) {
	t.Parallel()
	owner := exec.Command("sleep", "60")
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Process.Kill() })
	meeting, err := os.MkdirTemp("", "holdfast-servers-test-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(meeting) })
	socket := filepath.Join(meeting, "socket")
	ended := make(chan error, 1)
	go func() { ended <- listen(socket, owner.Process.Pid) }()

	first, second := connect(t, socket), connect(t, socket)
	ofFirst, ofSecond := imitationOf(t, first), imitationOf(t, second)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "the server of a binary that has ended is stopped", func() bool { return !answers(ofFirst) })
	if !answers(ofSecond) {
		t.Error("the server of another binary is stopped too")
	}

	// Nobody waits for the owner: it stays a zombie, which has ended all the same.
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(wait.Limit()):
		t.Fatal("it serves 30 s after its owner has ended")
	}
	if answers(ofSecond) {
		t.Error("a server outlives the owner")
	}
	if _, err := os.Stat(meeting); !os.IsNotExist(err) {
		t.Errorf("the folder of the socket is left: %v", err)
	}
}

func connect(t *testing.T, socket string) *rpc.Client {
	t.Helper()
	var conn net.Conn
	wait.Until(t, "it listens", func() (ok bool) {
		var err error
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	return jsonrpc.NewClient(conn)
}

func imitationOf(t *testing.T, client *rpc.Client) (address string) {
	t.Helper()
	var reply servers.KafkaReply
	if err := client.Call("Servers.InProcessKafka", servers.KafkaArgs{}, &reply); err != nil {
		t.Fatal(err)
	}
	return reply.Brokers[0]
}

func answers(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
