package history

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFollow_AFollowerReadsEachEntryOnceAndALineWhenItIsWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	follower := Follow(dir)
	want := func(texts ...string) {
		t.Helper()
		entries, err := follower.Next()
		var got []string
		for _, e := range entries {
			got = append(got, e.Text)
		}
		if err != nil || !slices.Equal(got, texts) {
			t.Errorf("got %q, %v, want %q", got, err, texts)
		}
	}
	want()
	record := func(actor, text string) {
		r, err := Open(dir, actor)
		if err != nil {
			t.Fatal(err)
		}
		r.Add(Entry{Op: Log, Text: text})
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	record("relay/0", "first")
	want("first")
	want()
	record("relay/1", "another's")
	f, err := os.OpenFile(filepath.Join(dir, "relay-0.history"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(text string) {
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"op":"log","te`)
	want("another's")
	write(`xt":"second"}` + "\n" + `{"op":"lo`)
	want("second")
	record("relay/0", "third") // the process before was killed in the middle of a line
	want("third")
}
