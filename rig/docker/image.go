package docker

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/testcontainers/testcontainers-go"
)

// digests pins images by what they contain, by name and tag: "postgres:18" is "sha256:…". A registry can give a tag to
// another image at any time. docs/project/releasing.md#images says how to look a digest up, and which images have none here.
var digests = map[string]string{}

// DigestsVar names images with their digests, before those that the code pins, separated by commas:
// postgres:18@sha256:…,apache/kafka:4.1.0@sha256:…
const DigestsVar = "HOLDFAST_TEST_IMAGE_DIGESTS"

// Image returns what to run for an image: by its digest where one is pinned, else as it is named. An image that was built on
// this machine has no digest of a registry, and runs by its name. Ready must have been called before.
func Image(ctx context.Context, name string) (string, error) {
	digest, err := pinnedDigest(name, os.Getenv(DigestsVar), digests)
	if err != nil || digest == "" {
		return name, err
	}
	local, err := inspect(ctx, name)
	if err != nil {
		return "", fmt.Errorf("look for the image %s: %w", name, err)
	}
	return reference(name, digest, local), nil
}

// localImage is what the engine knows of a name.
type localImage struct {
	found   bool
	digests []string // "postgres@sha256:…", of the registries that it came from
}

// reference decides what to run. The engine pulls what it does not have by that digest, and refuses anything else.
func reference(name, digest string, local localImage) string {
	if local.found && len(local.digests) == 0 {
		return name
	}
	return name + "@" + digest
}

var digestForm = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// pinnedDigest is the digest of an image, "" where none is pinned.
func pinnedDigest(name, variable string, table map[string]string) (string, error) {
	digest := table[name]
	for entry := range strings.SplitSeq(variable, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		image, d, ok := strings.Cut(entry, "@")
		if !ok || !digestForm.MatchString(d) {
			return "", fmt.Errorf("%s has %q: it must be name:tag@sha256: and 64 hexadecimal digits", DigestsVar, entry)
		}
		if image == name {
			digest = d
		}
	}
	return digest, nil
}

// inspect asks the engine for an image.
func inspect(ctx context.Context, name string) (localImage, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return localImage{}, err
	}
	defer provider.Close()
	image, err := provider.Client().ImageInspect(ctx, name)
	if errdefs.IsNotFound(err) {
		return localImage{}, nil
	}
	return localImage{found: err == nil, digests: image.RepoDigests}, err
}
