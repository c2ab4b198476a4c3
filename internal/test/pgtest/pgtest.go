// Package pgtest gives each test its own database on a real PostgreSQL.
//
// The server is shared by the tests of a binary: the one that HOLDFAST_TEST_DATABASE_URL names,
// where the user must be allowed to create databases, else one of this machine's binaries, else
// one in a container, else one of downloaded binaries. A test that cannot get a server is
// skipped, or fails where REQUIRE_SERVICES=1.
package pgtest

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// urlVar names a server to use instead of starting one.
const urlVar = "HOLDFAST_TEST_DATABASE_URL"

// Image is the PostgreSQL that New runs where it needs a container.
const Image = "postgres:18"

// New makes an empty database on the server of this test binary. It is dropped when the test
// ends, with whatever is still connected to it.
func New(t testing.TB) *DB {
	t.Helper()
	dsn, err := best.Get(startBest)
	need(t, err)
	return On(t, dsn)
}

// Container is New on a server in a container of that image, "postgres:18", which the tests of
// this binary share.
func Container(t testing.TB, image string) *DB {
	t.Helper()
	dsn, err := of(&images, image).Get(func() (string, error) {
		return addressOf(start("ContainerPostgres", servers.PostgresArgs{Image: image}))
	})
	need(t, err)
	return On(t, dsn)
}

// Main runs the tests of a binary, stops the servers that they shared, calls after one by one
// and returns the exit code:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m, kafkatest.Stop)) }
//
// A binary without it leaves nothing behind either, except on Windows: see package lifeline.
func Main(m *testing.M, after ...func()) int {
	flag.Parse()
	setParallel()
	skipExamples()
	code := m.Run()
	exampleTest.cleanup()
	Stop()
	for _, f := range after {
		f()
	}
	return code
}

// parallel is how many tests with a database run at once, whatever the processors: they wait for most of their time.
const parallel = 6

func setParallel() {
	chosen := runtime.GOMAXPROCS(0) > parallel
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", strconv.Itoa(parallel))
	}
}

// Stop stops the servers of this binary, those of package kafkatest too. It is for your own TestMain; no
// test may run afterwards.
func Stop() {
	models.Range(func(_, m any) bool {
		if made, ok := m.(*servers.Once[model]).Close(); ok {
			made.drop()
		}
		return true
	})
	servers.Stop()
}

// The servers of this test binary, each started by the first test that asks for it.
var (
	best     servers.Once[string]
	images   sync.Map // of *servers.Once[string], by image
	bouncers sync.Map // of *servers.Once[string], by the server that they stand before
	models   sync.Map // of *servers.Once[model], by the Model that they are of
)

func of(all *sync.Map, key any) *servers.Once[string] {
	s, _ := all.LoadOrStore(key, new(servers.Once[string]))
	return s.(*servers.Once[string])
}

func startBest() (string, error) {
	if dsn := os.Getenv(urlVar); dsn != "" {
		return dsn, nil
	}
	return addressOf(start("BestPostgres", servers.PostgresArgs{}))
}

func addressOf(s *Server, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return s.DSN, nil
}

// need ends the test that wants a server and cannot get it.
func need(t testing.TB, err error) {
	t.Helper()
	servers.Need(t, err, "PostgreSQL", "install it, set "+urlVar+" or start Docker", urlVar)
}
