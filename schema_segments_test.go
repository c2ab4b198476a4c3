package holdfast_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
)

var rewriteSegments = flag.Bool("rewrite-segments", false, "write the segments 1 to 3 of schema.sql anew, as segment 0 is")

// segments is how many the log has.
const segments = 4

var (
	// declared is a line that makes or changes segment 0, and the same lines of the others after it.
	declared = regexp.MustCompile(`(?m)^((?:create|alter) table holdfast\.event_)0(\b.*\n)(?:(?:create|alter) table holdfast\.event_[1-9]\b.*\n)*`)
	// indexed is the same for the names of indexes, which have the number in two places.
	indexed = regexp.MustCompile(`(?m)^(create index event_)0(_\w+ on holdfast\.event_)0(\b.*\n)(?:create index event_[1-9]_.*\n)*`)
	// chosen is the branch of segment 0 in a CASE, and those of the others.
	chosen = regexp.MustCompile(`(?s)(\n +when )0( then\n +insert into holdfast\.event_)0( .*?)(?:\n +when [1-9] then\n.*?)?(\n +end case;)`)
)

// withSegments is a schema in which every segment is written as segment 0 is.
func withSegments(schema string) string {
	every := func(text func(n string) string) string {
		var all strings.Builder
		for n := range segments {
			all.WriteString(text(strconv.Itoa(n)))
		}
		return all.String()
	}
	schema = indexed.ReplaceAllStringFunc(schema, func(found string) string {
		part := indexed.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] + n + part[3] })
	})
	schema = declared.ReplaceAllStringFunc(schema, func(found string) string {
		part := declared.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] })
	})
	return chosen.ReplaceAllStringFunc(schema, func(found string) string {
		part := chosen.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] + n + part[3] }) + part[4]
	})
}

// PL/pgSQL keeps the plan of an insert only where the table's name stands in it, so each segment has its own. Nobody writes
// them by hand: change segment 0, then run go test . -run Segment -rewrite-segments.
func TestEverySegmentIsWrittenAsSegmentZero(t *testing.T) {
	schema, want := holdfast.SchemaSQL(), withSegments(holdfast.SchemaSQL())
	if *rewriteSegments {
		if err := os.WriteFile("schema.sql", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if schema != want {
		lines, wanted := strings.Split(schema, "\n"), strings.Split(want, "\n")
		for i := range lines {
			if i >= len(wanted) || lines[i] != wanted[i] {
				t.Fatalf("schema.sql, line %d: a segment is not written as segment 0 is: change that one, then run go test . -run Segment -rewrite-segments\n%s", i+1, lines[i])
			}
		}
		t.Fatal("schema.sql lacks the end of a segment: run go test . -run Segment -rewrite-segments")
	}
	for n := range segments {
		for _, text := range []string{"create table holdfast.event_%d (", "create index event_%d_lane_xid_seq on", "create index event_%d_cut on", "alter table holdfast.event_%d set ("} {
			if text := fmt.Sprintf(text, n); strings.Count(schema, text) != 1 {
				t.Errorf("schema.sql says %q %d times", text, strings.Count(schema, text))
			}
		}
		if insert := fmt.Sprintf("insert into holdfast.event_%d (", n); strings.Count(schema, insert) != 3 {
			t.Errorf("schema.sql has %d branches that insert into segment %d, want those of append, append_unchecked and append_one", strings.Count(schema, insert), n)
		}
	}
}
