// Package exampletest is what the tests of the examples share.
package exampletest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// asCommand makes a test binary the example's command itself.
const asCommand = "HOLDFAST_EXAMPLE_AS_COMMAND"

// Main runs the tests of an example, or its main where Command started the process:
//
//	func TestMain(m *testing.M) { exampletest.Main(m, main) }
func Main(m *testing.M, main func()) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(kafkatest.Main(m, pgtest.Stop))
}

// Command is the example's command, with more in its environment: to see what it exits with, or to send it signals.
func Command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asCommand+"=1"), env...)
	return cmd
}

// Refused runs the command where it cannot do its work, wants it to exit with status 1 and returns what it said.
func Refused(t *testing.T, env ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := Command(env)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it exits with %v, want status 1", err)
	}
	return out.String(), errs.String()
}

// Told tells a story and returns what it said and how it ended. Where it found no server and none could be started,
// the test is skipped.
func Told(t *testing.T, story Story) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := story(t.Context(), &out)
	t.Logf("%s", &out)
	if errors.Is(err, pgserver.ErrNoServer) {
		skip.Without(t, "PostgreSQL", "install it", err)
	}
	return out.String(), err
}

// Cluster is a Kafka that runs already: the real one that the environment names, else an in-process fake.
func Cluster(t *testing.T) *kafkatest.Cluster {
	t.Helper()
	if os.Getenv("HOLDFAST_TEST_KAFKA_BROKERS") != "" {
		return kafkatest.New(t)
	}
	return kafkatest.InProcess(t)
}
