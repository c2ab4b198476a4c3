//go:build unix

package endtoend

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// A consumer that stood still while another was given its partitions takes nothing in under the right that it had, also
// where the other has not begun yet: then nothing but the fence is in its way. In the table another has taken the same
// events in before the thaw, and the key of their rows would do.
func TestFailpointsFence_AThawedConsumerTakesNothingInUnderARightThatIsOver(t *testing.T) {
	skip.InShort(t, subjectsAreLong)
	t.Parallel()
	o := newEnv(t, buildSubject(t), kafkatest.New(t), group{}, frozen)
	o.launch("relay", "")
	fencedOff := false
	for o.row = 1; !fencedOff; o.row++ {
		if o.row > 5 {
			t.Fatalf("five times a consumer was thawed, and never did it meet the fence")
		}
		// 1. It stands still with an event in progress, and many after it.
		v := o.armed("consumer", "inbox.inserting:9=freeze", false)
		o.load(10)
		o.reaches(v, failpoint.InboxInserting, frozen, plain().more)

		// 2. Another raises the epoch of every partition, and stands still before it reads the last of them.
		next := o.launch("consumer", fmt.Sprintf("inbox.assigned:%d=freeze", ofEnv))
		o.reaches(next, failpoint.InboxAssigned, frozen, nil)

		// 3. The first goes on: it has to be given the partitions anew.
		for _, thawed := range []*subject{v, next} {
			if err := thawed.cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			o.write(o.Event("key 1", 0), o.Event("", 0))
			o.settled()
		}
		o.mustHold()
		fencedOff = v.hasSaid("another node has the partition")
		if err := v.quit(); err != nil {
			t.Errorf("the consumer, thawed and told to stop: %v", err)
		}
	}
	o.leave()
}

// hasSaid tells whether the text is in what the process has said.
func (s *subject) hasSaid(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, line := range s.lines {
		if strings.Contains(line, text) {
			return true
		}
	}
	return false
}
