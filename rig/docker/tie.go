package docker

import (
	"context"
	"time"

	"github.com/testcontainers/testcontainers-go"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// stopTimeout bounds the removal of a container.
const stopTimeout = time.Minute

// Tie ties a container to this process. The zero value is ready for one container.
type Tie struct {
	ctr  testcontainers.Container
	line *lifeline.Line
}

// Option ties the container that it is given to. It works from the moment that the container exists: a process that is
// killed while the container starts leaves nothing behind.
func (t *Tie) Option() testcontainers.CustomizeRequestOption {
	created := func(_ context.Context, ctr testcontainers.Container) error {
		t.ctr, t.line = ctr, attach(ctr.GetContainerID())
		return nil
	}
	return testcontainers.WithAdditionalLifecycleHooks(testcontainers.ContainerLifecycleHooks{
		PostCreates: []testcontainers.ContainerHook{created},
	})
}

// Stop removes the container at once, without time to shut down in good order. It does nothing where none was created.
func (t *Tie) Stop() {
	if t.ctr == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := t.ctr.Terminate(ctx, testcontainers.StopTimeout(0)); err == nil {
		t.line.Release()
	} // Otherwise the lifeline tries again when this process ends.
}
