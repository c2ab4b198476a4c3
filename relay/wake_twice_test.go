package relay

import (
	"testing"
	"testing/synctest"

	"github.com/holdfast-go/holdfast/relay/internal/simdb"
)

// A look that finds another incarnation wakes all lanes, also one that is reading. That one reads once more when it is idle, while the
// poller takes it for idle and wakes it again: what it says is older than what has been read by then.
func TestWakeTwice_ALaneThatIsWokenWhileItReadsDoesNotGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, r, l := pacedRelay(t, nil, func(string) {})
		l.reader.limit = 10
		write := func(id string) {
			t.Helper()
			tx := db.Begin()
			tx.Append(0, simdb.Event{ID: id, Topic: "orders", Key: "k"})
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		read := func() (ids []string) {
			t.Helper()
			for {
				p, err := l.reader.next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range p.events {
					ids = append(ids, e.ID)
				}
				if p.last {
					r.poller.idle(l, p.after.done)
					return ids
				}
			}
		}
		wake := func() {
			t.Helper()
			select {
			case <-l.wake:
				l.reader.skip(l.emptyUpTo.Swap(nil))
			default:
				t.Fatal("the lane is not woken: the test shows nothing")
			}
		}
		signal(l.wake) // while it reads
		read()
		wake()
		write("e1")
		if found, err := r.poller.look(t.Context(), false); err != nil || !found {
			t.Fatalf("found: %t, %v", found, err)
		}
		if ids := read(); len(ids) != 1 {
			t.Fatalf("%v are read: the test shows nothing", ids)
		}
		before := l.reader.at.cursor
		wake()
		if ids := read(); len(ids) != 0 {
			t.Errorf("%v is read again: the lane went back from %v", ids, before)
		}
	})
}
