// Package pgtest gives each test its own database on a real PostgreSQL.
//
// The server is shared by the tests of a binary: the one that HOLDFAST_TEST_DATABASE_URL names,
// where the user must be allowed to create databases, else one of this machine's binaries, else
// one in a container, else one of downloaded binaries. A test that cannot get a server is
// skipped, or fails where REQUIRE_SERVICES=1.
package pgtest

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/servers"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// urlVar names a server to use instead of starting one.
const urlVar = "HOLDFAST_TEST_DATABASE_URL"

// Image is the PostgreSQL that New runs where it needs a container.
const Image = "postgres:18"

// New makes an empty database on the server of this test binary. It is dropped when the test
// ends, with whatever is still connected to it.
func New(t testing.TB) *DB {
	t.Helper()
	dsn, err := best.get(startBest)
	must(t, err)
	return On(t, dsn)
}

// Container is New on a server in a container of that image, "postgres:18", which the tests of
// this binary share.
func Container(t testing.TB, image string) *DB {
	t.Helper()
	dsn, err := ofImage(image).get(func() (string, func(), error) {
		s, err := start("ContainerPostgres", servers.PostgresArgs{Image: image})
		if err != nil {
			return "", nil, err
		}
		return s.DSN, func() {}, nil
	})
	must(t, err)
	return On(t, dsn)
}

// Main runs the tests of a binary, stops the servers that they shared, calls after one by one
// and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }
//
// A binary without it leaves nothing behind either, except on Windows: see package lifeline.
func Main(m *testing.M, after ...func()) int {
	skipExamples()
	code := m.Run()
	exampleTest.cleanup()
	Stop()
	for _, f := range after {
		f()
	}
	return code
}

// Stop stops the servers of this binary, those of package kafkatest too. It is for a TestMain of one's own; no
// test may run afterwards.
func Stop() {
	stopAll := func(servers *sync.Map) {
		servers.Range(func(_, s any) bool {
			s.(*shared).stop()
			return true
		})
	}
	stopAll(&bouncers)
	stopAll(&models)
	best.stop()
	stopAll(&images)
	servers.Stop()
}

// The servers of this test binary, each started by the first test that asks for it.
var (
	best     shared
	images   sync.Map // of *shared, by image
	bouncers sync.Map // of *shared, by the server that they stand before
	models   sync.Map // of *shared: databases, by the Model that they are of
)

func ofImage(image string) *shared {
	s, _ := images.LoadOrStore(image, new(shared))
	return s.(*shared)
}

// shared is a server that is started at most once; a failure is remembered too.
type shared struct {
	once sync.Once
	dsn  string
	end  func()
	err  error
}

func (s *shared) get(start func() (string, func(), error)) (string, error) {
	s.once.Do(func() { s.dsn, s.end, s.err = start() })
	return s.dsn, s.err
}

// stop uses up the once: a server that no test asked for is not started to be stopped.
func (s *shared) stop() {
	s.once.Do(func() { s.err = errors.New("the tests are over") })
	if s.end != nil {
		s.end()
	}
}

func startBest() (string, func(), error) {
	if dsn := os.Getenv(urlVar); dsn != "" {
		return dsn, func() {}, nil
	}
	s, err := start("BestPostgres", servers.PostgresArgs{})
	if err != nil {
		return "", nil, err
	}
	return s.DSN, func() {}, nil
}

// must ends the test that wants a server and cannot get it. A server that fails, where there is one, is to be seen.
func must(t testing.TB, err error) {
	t.Helper()
	if isMissing(err) {
		unavailable(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unavailable skips the test, or fails it where services are required. It does not return.
func unavailable(t testing.TB, err error) {
	t.Helper()
	remedy := "install it, set " + urlVar + " or start Docker"
	if errors.Is(err, servers.ErrNoTestkit) {
		remedy = "clone the repository or set " + urlVar
	}
	skip.Without(t, "PostgreSQL", remedy, err)
}
