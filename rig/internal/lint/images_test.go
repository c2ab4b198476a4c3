package lint

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The page says which images have a digest and which have none, and leaves none out.
func TestImages_TheDocumentationSaysWhichImagesHaveADigest(t *testing.T) {
	digests := map[string]string{}
	table := regexp.MustCompile(`(?s)\nvar digests = map\[string\]string\{(.*?)\}\n`).FindStringSubmatch(read(t, "rig/docker/image.go"))
	if table == nil {
		t.Fatal("rig/docker/image.go has no digests: the search has gone blind")
	}
	for _, m := range regexp.MustCompile(`"([^"]+)":\s+"([^"]+)"`).FindAllStringSubmatch(table[1], -1) {
		digests[m[1]] = m[2]
	}
	said := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+:[^`]+)` \\| (none|`sha256:[0-9a-f]{64}`) \\|$").FindAllStringSubmatch(read(t, "docs/project/releasing.md"), -1) {
		said[m[1]] = strings.Trim(m[2], "`")
	}
	images := imagesOf(t)
	for _, image := range images {
		want := digests[image]
		if want == "" {
			want = "none"
		}
		if said[image] != want {
			t.Errorf("docs/project/releasing.md says that the digest of %s is %q, and it is %s", image, said[image], want)
		}
	}
	for image := range said {
		if !slices.Contains(images, image) {
			t.Errorf("docs/project/releasing.md names %s, which nothing runs", image)
		}
	}
}

// imagesOf are the images that the code names outside tests.
func imagesOf(t *testing.T) (images []string) {
	t.Helper()
	constant := regexp.MustCompile(`(?m)^const [iI]mage = "([^"]+)"$`)
	for _, file := range sources(t) {
		for _, m := range constant.FindAllStringSubmatch(read(t, file), -1) {
			images = append(images, m[1])
		}
	}
	slices.Sort(images)
	if images = slices.Compact(images); len(images) < 2 {
		t.Errorf("only %q were found: the search has gone blind", images)
	}
	return images
}
