package relay

import (
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
)

func TestParkWhy_ParkedEventsHaveOneWordInTheTableAndTheObserver(t *testing.T) {
	known := regexp.MustCompile(`why_is_known check \(why in \(([^)]*)\)`).FindStringSubmatch(holdfast.SchemaSQL())
	if known == nil {
		t.Fatal("schema.sql lists no words for the column why")
	}
	for _, d := range []disposition{recordRefused, follows, topicHeld, partitionDown, first} {
		if !strings.Contains(known[1], "'"+d.why()+"'") {
			t.Errorf("an event parked as %v is %q to the observer, the table knows %s", d, d.why(), known[1])
		}
	}
}
