package servers

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// buildTimeout bounds the start of the process: go run compiles it first, on a machine that is busy with tests.
	buildTimeout = 10 * time.Minute
	// socketLength is the most that a Unix socket's path may have.
	socketLength = 100
)

// join returns a connection to the process that serves the go test which runs this binary, and starts it where this is
// the first binary that asks. It returns nil where no go test runs this binary, or where no socket can be made.
//
// Binaries whose variables say different things about Docker do not share one.
func join(dir string) (*process, error) {
	owner := os.Getppid()
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", owner)); err != nil || string(name) != "go\n" {
		return nil, nil
	}
	hash := fnv.New32a()
	fmt.Fprint(hash, dir)
	for _, variable := range os.Environ() { // not Getenv: see readDockerVars
		if name, _, _ := strings.Cut(variable, "="); slices.Contains(dockerVars, name) {
			fmt.Fprint(hash, variable)
		}
	}
	meeting := filepath.Join(os.TempDir(), fmt.Sprintf("holdfast-servers-%d-%x", owner, hash.Sum32()))
	socket := filepath.Join(meeting, "socket")
	if len(socket) > socketLength || makeOwnDir(meeting) != nil {
		return nil, nil
	}
	unlock, err := lock(filepath.Join(meeting, "lock"))
	if err != nil {
		return nil, nil
	}
	defer unlock()
	printed := filepath.Join(meeting, "log")
	conn, err := net.Dial("unix", socket)
	if err != nil {
		_ = os.Remove(socket) // of a process that was killed
		if conn, err = startShared(dir, socket, printed, owner); err != nil {
			return nil, err
		}
	}
	client := jsonrpc.NewClient(conn)
	return &process{
		client: client,
		said:   func() string { return endOf(printed) },
		stop:   func() { _ = client.Close() },
	}, nil
}

// makeOwnDir makes a folder that nobody else can write to, or finds it made.
func makeOwnDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err == nil || !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != os.Getuid() || info.Mode() != os.ModeDir|0o700 {
		return fmt.Errorf("%s belongs to somebody else", dir)
	}
	return nil
}

// lock waits until no other process holds the lock. One that ends gives it back.
func lock(name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// startShared starts the process of all and returns the first connection to it. It holds none of this binary's outputs:
// go test waits for these to be closed.
func startShared(dir, socket, printed string, owner int) (net.Conn, error) {
	log, err := os.OpenFile(printed, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	defer log.Close()
	cmd := command(dir, "-socket", socket, "-owner", strconv.Itoa(owner))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // an interrupt is for go test, at whose end it ends
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process of the servers: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(buildTimeout); ; {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			return conn, nil
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("start the process of the servers: it ended: %w, it said:\n%s", err, endOf(printed))
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("start the process of the servers: it does not listen after %s: %w, it said:\n%s", buildTimeout, err, endOf(printed))
		}
	}
}

// endOf is the end of a file.
func endOf(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-logSize), io.SeekStart)
	}
	text, _ := io.ReadAll(f)
	return strings.TrimSpace(string(text))
}
