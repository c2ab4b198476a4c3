//go:build unix

package docker

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/testcontainers/testcontainers-go"
	containerwait "github.com/testcontainers/testcontainers-go/wait"
)

// childVar makes the test binary be the program that starts a container and is killed.
const childVar = "HOLDFAST_DOCKER_CHILD"

// image is one that the tests of other packages need too; it only sleeps here.
const image = "postgres:18"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) != "" {
		if err := Ready(); err != nil {
			panic(err)
		}
		_, err := testcontainers.Run(context.Background(), image, new(Tie).Option(), testcontainers.WithEntrypoint("sleep", "300"),
			announced(), testcontainers.WithWaitStrategy(containerwait.ForLog("it never says this")))
		panic(err) // it is killed before
	}
	os.Exit(m.Run())
}

// announced prints the id of the container once it runs, while its start still waits for something.
func announced() testcontainers.CustomizeRequestOption {
	print := func(_ context.Context, ctr testcontainers.Container) error {
		fmt.Println(ctr.GetContainerID())
		return nil
	}
	return testcontainers.WithAdditionalLifecycleHooks(testcontainers.ContainerLifecycleHooks{
		PostStarts: []testcontainers.ContainerHook{print},
	})
}

func TestAttach_AContainerGoesWhenItsProgramIsKilledAtTheStart(t *testing.T) {
	t.Parallel()
	err := Ready()
	if err == nil && !attachable() {
		err = fmt.Errorf("there is no command docker")
	}
	if err != nil {
		skip.Without(t, "Docker", "start it", err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVar+"=1")
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(line)
	if !exists(t, id) {
		t.Fatalf("container %s is not there", id)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	wait.Until(t, "the container goes after its program was killed", func() bool { return !exists(t, id) })
}

func exists(t *testing.T, id string) bool {
	t.Helper()
	out, err := exec.Command("docker", "ps", "--all", "--quiet", "--filter", "id="+id).CombinedOutput()
	if err != nil {
		t.Fatalf("docker ps: %v\n%s", err, out)
	}
	return len(strings.TrimSpace(string(out))) > 0
}
