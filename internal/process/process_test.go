package process

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

func TestProcess_ANameLeadsToTheProcessAndIsItsOwn(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	one, other := Name("relay"), Name("relay")
	form := regexp.MustCompile(fmt.Sprintf("^%.200s/%d/[0-9a-f]{8}$", regexp.QuoteMeta(host), os.Getpid()))
	if one == other || !form.MatchString(one) || !form.MatchString(other) {
		t.Errorf("got %s and %s", one, other)
	}
}
