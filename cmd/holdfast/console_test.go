package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
)

func TestTheConsoleIsServedOnLoopbackOnly(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	for _, address := range []string{"0.0.0.0:0", ":7413", "[::]:0", "10.0.0.1:80", "example.com:80"} {
		wantStatus(t, 2, "it must be a loopback address", "console", "--listen", address)
	}
	wantStatus(t, 2, "an address and a port", "console", "--listen", "127.0.0.1")

	ctx, stop := context.WithCancel(t.Context())
	said, out := io.Pipe()
	var errOut bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		defer out.Close()
		ended <- (&consoleCmd{Listen: "127.0.0.1:0", By: "ann"}).Run(&program{ctx: ctx, out: out, errOut: &errOut, cli: &cli{DatabaseURL: db.DSN, Schema: "holdfast"}})
	}()
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.Fields(line)[0]
	get := func(host string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			request.Host = host
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(body)
	}
	if status, body := get(""); status != 200 || !strings.Contains(body, "lanes without") || !strings.Contains(body, "ann") {
		t.Errorf("%d: %s", status, body)
	}
	if status, body := get("evil.example:7413"); status != 403 || strings.Contains(body, "lanes without") {
		t.Errorf("for another name: %d: %s", status, body)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
