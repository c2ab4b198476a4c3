package docker

import (
	"strings"
	"testing"

	"github.com/testcontainers/testcontainers-go"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

const (
	one   = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	other = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func TestImage_AnImageWithADigestIsRunByIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		local localImage
		want  string
	}{
		"it is not here":                       {localImage{}, "postgres:18@" + one},
		"it is here":                           {localImage{true, []string{"postgres@" + one}}, "postgres:18@" + one},
		"the tag is another image's by now":    {localImage{true, []string{"postgres@" + other}}, "postgres:18@" + one},
		"it was built here, by who has Docker": {localImage{found: true}, "postgres:18"},
	} {
		if got := reference("postgres:18", one, c.local); got != c.want {
			t.Errorf("%s: it runs %s, want %s", name, got, c.want)
		}
	}
}

func TestImage_DigestsComeFromTheVariableThenFromTheCode(t *testing.T) {
	t.Parallel()
	table := map[string]string{"postgres:18": one}
	for _, c := range []struct{ name, variable, want string }{
		{"postgres:18", "", one},
		{"postgres:18", "postgres:18@" + other, other},
		{"postgres:18", "postgres:17@" + other + ", apache/kafka:4.1.0@" + other, one},
		{"apache/kafka:4.1.0", "postgres:17@" + other + ", apache/kafka:4.1.0@" + other, other},
		{"apache/kafka:4.1.0", "", ""},
	} {
		if got, err := pinnedDigest(c.name, c.variable, table); err != nil || got != c.want {
			t.Errorf("%s with %q: %q, %v, want %q", c.name, c.variable, got, err, c.want)
		}
	}
	for _, bad := range []string{"postgres:18", "postgres:18@latest", "postgres:18@sha256:12", "postgres:18@" + strings.ToUpper(one)} {
		if _, err := pinnedDigest("apache/kafka:4.1.0", bad, nil); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestImage_TheDigestsOfTheCodeAreDigests(t *testing.T) {
	t.Parallel()
	for name, digest := range digests {
		if !digestForm.MatchString(digest) || !strings.Contains(name, ":") {
			t.Errorf("%s is pinned to %q: want sha256: and 64 hexadecimal digits, by name and tag", name, digest)
		}
	}
}

// Asked of a real engine: a name that nobody has, and an image of this machine.
func TestImage_TheEngineSaysWhereAnImageIsFrom(t *testing.T) {
	if err := Ready(); err != nil {
		skip.Without(t, "Docker", "start it", err)
	}
	const nobodys = "holdfast.invalid/nobodys:1"
	t.Setenv(DigestsVar, nobodys+"@"+one)
	if got, err := Image(t.Context(), nobodys); err != nil || got != nobodys+"@"+one {
		t.Errorf("an image that is not here runs as %s, %v", got, err)
	}
	// What it would run is not to be had, so no other image of that name runs.
	ctr, err := testcontainers.Run(t.Context(), nobodys+"@"+one)
	if err == nil {
		t.Error("it ran")
	}
	_ = testcontainers.TerminateContainer(ctr)
}
