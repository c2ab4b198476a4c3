package deploy

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// docker runs the client of Docker, and returns what it printed.
func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryDocker(args...)
	if err != nil {
		t.Fatalf("docker %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func tryDocker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if err != nil {
		err = errors.Join(err, errors.New(errOut.String()))
	}
	return out.String(), err
}

// image builds the image of the binary, and returns its name.
func image(t *testing.T) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		skip.Without(t, "Docker with the network of this machine", "use Linux", errors.New(runtime.GOOS))
	}
	if _, err := tryDocker("version", "--format", "{{.Server.Version}}"); err != nil {
		skip.Without(t, "Docker", "start it", err)
	}
	dir := filepath.Dir(built(t))
	authorities, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	if err != nil {
		authorities = certtest.New(t).PEM
	}
	if err := os.WriteFile(filepath.Join(dir, "ca-certificates.crt"), authorities, 0o644); err != nil {
		t.Fatal(err)
	}
	name := "holdfast-test:" + strings.ToLower(rand.Text())
	docker(t, "build", "-q", "-f", "Dockerfile", "--target", "binary", "-t", name, dir)
	t.Cleanup(func() { _, _ = tryDocker("rmi", "-f", name) })
	return name
}

// locked are the restrictions that the manifests put on a container.
var locked = []string{"--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}

func TestImage_TheImageHasABinaryAuthoritiesAndNoRoot(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	name := image(t)
	if out := docker(t, append(append([]string{"run", "--rm", "--network", "none"}, locked...), name, "version")...); !regexp.MustCompile(`^holdfast \S+, schema version \d+\n$`).MatchString(out) {
		t.Errorf("its version is %q", out)
	}
	if user := strings.TrimSpace(docker(t, "image", "inspect", "-f", "{{.Config.User}}", name)); user != "65532:65532" {
		t.Errorf("it runs as %q", user)
	}
	if out, err := tryDocker("run", "--rm", "--entrypoint", "/bin/sh", name, "-c", "true"); err == nil {
		t.Errorf("it has a shell: %s", out)
	}
	id := strings.TrimSpace(docker(t, "create", name))
	defer func() { _, _ = tryDocker("rm", "-f", id) }()
	var files []string
	for content := tar.NewReader(strings.NewReader(docker(t, "export", id))); ; {
		h, err := content.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg && h.Size > 0 { // The others are what the engine mounts over.
			files = append(files, h.Name)
		}
	}
	if slices.Sort(files); !slices.Equal(files, []string{"etc/ssl/certs/ca-certificates.crt", "holdfast"}) {
		t.Errorf("it has %q", files)
	}
}

var listening = regexp.MustCompile(`"msg":"listening","address":"([^"]+)"`)

func TestImage_TheImageRelaysWithoutRootOnAReadOnlyDisk(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	name := image(t)
	db, cluster := migrated.New(t), kafkatest.New(t)
	topic := cluster.Topic(t, 1)
	args := append([]string{"run", "-d", "--network", "host"}, locked...)
	for _, v := range []string{"DATABASE_URL=" + db.DSN, "KAFKA_BROKERS=" + strings.Join(cluster.Brokers, ","), "HOLDFAST_LISTEN=127.0.0.1:0", "HOLDFAST_LOG_FORMAT=json"} {
		args = append(args, "-e", v)
	}
	id := strings.TrimSpace(docker(t, append(args, name, "relay")...))
	defer func() { _, _ = tryDocker("rm", "-f", id) }()
	log := func() string {
		out, _ := exec.Command("docker", "logs", id).CombinedOutput()
		return string(out)
	}
	var address []string
	wait.Until(t, "it listens", func() bool { address = listening.FindStringSubmatch(log()); return address != nil })
	ready := func() bool {
		response, err := http.Get("http://" + address[1] + "/readyz")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK
	}
	wait.Until(t, "it is ready", ready)
	pgtest.Exec(t, db.Pool, "select holdfast.write($1, 'k', 'order.placed', '{}')", topic)
	wait.Until(t, "the event is in Kafka", func() bool { return len(cluster.ReadAll(t, topic)) == 1 })
	docker(t, "stop", "-t", "30", id) // SIGTERM
	if state := strings.TrimSpace(docker(t, "inspect", "-f", "{{.State.ExitCode}} {{.State.OOMKilled}}", id)); state != "0 false" || !strings.Contains(log(), `"msg":"relay stopped"`) {
		t.Errorf("it ended with %q: %s", state, log())
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where owner is not null"); n != 0 {
		t.Errorf("%d lanes were not handed back", n)
	}
}

// Both ways to build the image end in the same stage, and the base has a name with a version.
func TestImage_BothImagesAreTheSame(t *testing.T) {
	text := read(t, "Dockerfile")
	if !regexp.MustCompile(`(?m)^ARG BASE=golang:1\.\d+(\.\d+)?-\w+$`).MatchString(text) {
		t.Error("the base is not pinned by its version")
	}
	after := func(from string) string {
		_, rest, found := strings.Cut(text, from)
		if !found {
			t.Fatalf("there is no %q", from)
		}
		stage, _, _ := strings.Cut(rest, "\n#")
		return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(stage), "--from=build ", ""), "/out/", "")
	}
	if binary, last := after("FROM base AS binary\n"), after("\nFROM base\n"); binary != last || strings.Count(binary, "COPY") != 2 {
		t.Errorf("of a binary:\n%s\nof a clone:\n%s", binary, last)
	}
	for _, flag := range []string{"CGO_ENABLED=0", "-trimpath", "-buildvcs=false", `-ldflags="-s -w -buildid="`} {
		if !strings.Contains(text, flag) {
			t.Errorf("it is built without %s", flag)
		}
	}
}
