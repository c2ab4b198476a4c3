package wait

import (
	"testing"
	"time"
)

func TestLimit_AWaitEndsShortlyBeforeTheTimeOutOfGoTest(t *testing.T) {
	for _, row := range []struct{ timeout, spent, want time.Duration }{
		{10 * time.Minute, 0, 10*time.Minute - toSayIt},
		{10 * time.Minute, 4 * time.Minute, 6*time.Minute - toSayIt},
		{10 * time.Minute, 10*time.Minute - time.Second, 30 * time.Second}, // go test ends it first
		{10 * time.Minute, -26 * 365 * 24 * time.Hour, 10*time.Minute - toSayIt},
		{0, time.Hour, withoutTimeout},
	} {
		if got := limit(row.timeout, row.spent); got != row.want {
			t.Errorf("after %v of %v it waits for %v, want %v", row.spent, row.timeout, got, row.want)
		}
	}
}
