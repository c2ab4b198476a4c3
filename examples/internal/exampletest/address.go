package exampletest

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
)

// FreeAddress is an address of 127.0.0.1 for a command to listen on. Nobody listens there now.
func FreeAddress(t testing.TB) string {
	t.Helper()
	port, err := freeport.Find()
	if err != nil {
		t.Fatalf("find a free port: %v", err)
	}
	return fmt.Sprint("127.0.0.1:", port)
}
