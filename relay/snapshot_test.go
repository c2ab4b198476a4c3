package relay

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSnapshot_SnapshotsAreReadAndPrintedAsPostgresDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, rule string }{
		{"nothing in flight", "10:10:", ""},
		{"some in flight", "10:20:10,14,19", ""},
		{"the largest xids", "18446744073709551614:18446744073709551615:18446744073709551614", ""},
		{"empty", "", "xmin:xmax:list"},
		{"two parts", "10:20", "xmin:xmax:list"},
		{"four parts", "10:20:11:", "xmin:xmax:list"},
		{"no number", "x:20:", "xmin"},
		{"a negative number", "-1:20:", "xmin"},
		{"xmin 0", "0:20:", "xmin not 0"},
		{"xmax below xmin", "20:10:", "not below"},
		{"too large a number", "10:18446744073709551616:", "xmax"},
		{"in flight below xmin", "10:20:9", "from xmin"},
		{"in flight at xmax", "10:20:20", "without xmax"},
		{"not ascending", "10:20:14,12", "ascend"},
		{"twice the same", "10:20:12,12", "ascend"},
		{"an empty field", "10:20:12,", "number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := parseSnapshot(c.text)
			if (err == nil) != (c.rule == "") {
				t.Fatalf("parse %q: %v, want an error about %q", c.text, err, c.rule)
			}
			if err == nil && s.String() != c.text {
				t.Errorf("%q is printed as %q", c.text, s)
			}
		})
	}
}

func TestSnapshot_ASnapshotKnowsWhoHadEnded(t *testing.T) {
	t.Parallel()
	s, err := parseSnapshot("10:20:10,14")
	if err != nil {
		t.Fatal(err)
	}
	for xid, want := range map[uint64]bool{9: true, 10: false, 11: true, 13: true, 14: false, 15: true, 19: true, 20: false, 21: false} {
		if s.visible(xid) != want {
			t.Errorf("visible(%d) is %v", xid, !want)
		}
	}
}

func TestSnapshot_WithoutTakesOneTransactionOutAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, from string
		xid        uint64
		want       string
	}{
		{"in the range", "10:20:12", 15, "10:20:12,15"},
		{"before the listed ones", "10:20:12", 11, "10:20:11,12"},
		{"below xmin", "10:20:12", 5, "5:20:5,12"},
		{"in flight already", "10:20:12", 12, "10:20:12"},
		{"at xmax, so not begun", "10:20:12", 20, "10:20:12"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := parseSnapshot(c.from)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.without(c.xid).String(); got != c.want {
				t.Errorf("%s without %d is %s, want %s", c.from, c.xid, got, c.want)
			}
		})
	}
	t.Run("any snapshot, any transaction", rapid.MakeCheck(func(t *rapid.T) {
		s := someSnapshot(t)
		before := slices.Clone(s.inFlight)
		xid := rapid.Uint64Range(1, s.xmax+5).Draw(t, "xid")
		w := s.without(xid)
		if _, err := parseSnapshot(w.String()); err != nil {
			t.Fatalf("%v without %d: %v", s, xid, err)
		}
		for x := uint64(1); x < s.xmax+6; x++ {
			if w.visible(x) != (s.visible(x) && x != xid) {
				t.Fatalf("%v without %d: visible(%d) is %v", s, xid, x, w.visible(x))
			}
		}
		if !slices.Equal(before, s.inFlight) {
			t.Fatal("without changed the snapshot it was asked of")
		}
	}))
}

// someSnapshot draws a snapshot together with what it means: the set of transactions in flight.
func someSnapshot(t *rapid.T) snapshot {
	s := snapshot{xmin: rapid.Uint64Range(1, 40).Draw(t, "xmin")}
	s.xmax = s.xmin + rapid.Uint64Range(0, 20).Draw(t, "span")
	for x := s.xmin; x < s.xmax; x++ {
		if rapid.Bool().Draw(t, "in flight") {
			s.inFlight = append(s.inFlight, x)
		}
	}
	return s
}

func TestSnapshot_WhatIsPrintedIsReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := someSnapshot(t)
		got, err := parseSnapshot(s.String())
		if err != nil || got.xmin != s.xmin || got.xmax != s.xmax || !slices.Equal(got.inFlight, s.inFlight) {
			t.Fatalf("%v was read back as %v, %v", s, got, err)
		}
	})
}

func FuzzParseSnapshot(f *testing.F) {
	for _, seed := range []string{"10:20:10,14,19", "1:1:", "0:0:", "::", "10:20:19,10", "18446744073709551615:18446744073709551615:"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSnapshot(text)
		if err != nil {
			return
		}
		again, err := parseSnapshot(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%q was printed as %q and read back as %q, %v", text, s, again, err)
		}
		if s.visible(s.xmax) || !s.visible(s.xmin-1) && s.xmin > 0 {
			t.Fatalf("%q: what is visible does not fit its ends", text)
		}
		for _, xid := range s.inFlight {
			if s.visible(xid) {
				t.Fatalf("%q: %d is in flight and visible", text, xid)
			}
		}
	})
}

func TestSnapshot_ACursorMovesByPagesAndWindows(t *testing.T) {
	t.Parallel()
	start := cursor{done: "1:1:"}
	inside := start.after("5:5:", true, 42)
	if want := (cursor{done: "1:1:", upto: "5:5:", pos: 42}); inside != want {
		t.Errorf("after a full page the cursor is %v, want %v", inside, want)
	}
	if got, want := inside.after("5:5:", false, 50), (cursor{done: "5:5:"}); got != want {
		t.Errorf("after the window's last page the cursor is %v, want %v", got, want)
	}
}

func TestSnapshot_AWindowOfABacklogEndsAtTheLastCutWithinItsSpan(t *testing.T) {
	t.Parallel()
	cuts := func(seqs ...int64) (out []cut) {
		for i, seq := range seqs {
			out = append(out, cut{upto: string(rune('a' + i)), seq: seq})
		}
		return out
	}
	for _, c := range []struct {
		name string
		cuts []cut
		want string
	}{
		{"no cut", nil, ""},
		{"one cut, however far", cuts(1_000_000), "a"},
		{"all within", cuts(10, 50, 110), "c"},
		{"one outside", cuts(10, 50, 111), "b"},
		{"what follows one outside is not looked at", cuts(10, 111, 60), "a"},
		{"a later cut with a smaller seq", cuts(50, 20, 60), "c"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, found := chooseCut(c.cuts, 100)
			if found != (c.want != "") || got.upto != c.want {
				t.Errorf("chose %q, want %q", got.upto, c.want)
			}
		})
	}
}

// A window is read page by page from the list of its places and from its big transactions. Whatever their sizes, every event
// comes once, in seq order, and the list is read again as soon as a page may need more of it.
func TestSnapshot_APlannedWindowIsReadOnceAndInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit, list := rapid.IntRange(1, 10).Draw(t, "limit"), rapid.IntRange(10, 30).Draw(t, "list")
		n := rapid.IntRange(0, 100).Draw(t, "events")
		xids := rapid.SliceOfN(rapid.Int64Range(1, 6), n, n).Draw(t, "transactions")
		big := rapid.SliceOfNDistinct(rapid.Int64Range(1, 6), 0, 3, rapid.ID).Draw(t, "big")
		p, pos, lists := plan{big: big}, int64(0), 0
		for full := true; full; {
			if p.short(limit) {
				var next places
				for i, xid := range xids {
					if seq := int64(i + 1); seq > pos && !slices.Contains(big, xid) && len(next.seqs) < list {
						next.xids, next.seqs = append(next.xids, xid), append(next.seqs, seq)
					}
				}
				p = p.listed(next, list)
				lists++
			}
			var page []int64
			of := p.page(limit)
			for i, xid := range xids {
				at := slices.Index(of.seqs, int64(i+1))
				if (int64(i+1) > pos && slices.Contains(big, xid) || at >= 0 && of.xids[at] == xid) && len(page) < limit {
					page = append(page, int64(i+1))
				}
			}
			for _, seq := range page {
				if seq != pos+1 {
					t.Fatalf("seq %d came after %d", seq, pos)
				}
				pos = seq
			}
			if full = len(page) == limit; full {
				p = p.after(pos)
			}
		}
		if pos != int64(n) {
			t.Fatalf("%d events were read of %d", pos, n)
		}
		if most := 1 + n/(list-limit+1); lists > most {
			t.Fatalf("%d lists were read, want %d at most", lists, most)
		}
	})
}
