package position

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The partitions of these tests have the consumer and the topic a, b or c each, and the number 4, 5 or 6. Ours is b, b, 5. Their names say which
// they are. All have the epoch 7, the position 50 and the checkpoint 40, of the identity 1040.
const (
	thePartitions = `insert into holdfast.consumer_position (consumer, topic, partition, epoch, position, clean, owner, group_id, checkpoint_offset, checkpoint_identity, held, updated_at)
		select c, t, p, 7, 50, false, 'node', 'of ' || c || t || p, 40, 1040, 'why', '-infinity'
		  from unnest('{a,b,c}'::text[]) c, unnest('{a,b,c}'::text[]) t, generate_series(4, 6) p where %s`
	ourPartition    = "(c, t, p) = ('b', 'b', 5)"
	otherPartitions = "(c, t, p) <> ('b', 'b', 5)"

	positionRows = "select concat(consumer, topic, partition), p::text from holdfast.consumer_position p"
	ourRow       = `select concat_ws(' ', position, checkpoint_offset, checkpoint_identity) from holdfast.consumer_position
		where (consumer, topic, partition) = ('b', 'b', 5)`
)

// A statement on one partition means that of its consumer, its topic and its number.
func TestNeighbours_APartitionIsKnownByAllOfItsName(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	ours := func(more ...any) []any { return append([]any{"b", "b", int32(5)}, more...) }
	for name, c := range map[string]struct {
		sql            string
		args           []any
		change         string // of our partition
		returned, does string
		elsewhere      string // what it returns where ours is not there
	}{
		"it has the epoch":              {fenceCheckSQL, ours(int64(7)), "epoch = 7", "true", "", "false"},
		"it has an earlier epoch":       {fenceCheckSQL, ours(int64(7)), "epoch = 6", "false", "", "false"},
		"it has a later epoch":          {fenceCheckSQL, ours(int64(7)), "epoch = 8", "false", "", "false"},
		"its position":                  {positionSQL, ours(), "clean = true", "50 true of bb5", "", ""},
		"its checkpoint":                {checkpointSQL, ours(), "checkpoint_offset = 49", "49 1040", "", ""},
		"its checkpoint, set back":      {checkpointSQL, ours(), "position = 40", "", "", ""},
		"its checkpoint, set back more": {checkpointSQL, ours(), "position = 39", "", "", ""},
		"it is held":                    {holdSQL, ours("ours", nil), "epoch = 7", "50", "bb5", ""},
		"it is held by its owner":       {holdSQL, ours("ours", int64(7)), "epoch = 7", "50", "bb5", ""},
		"it is held by an earlier one":  {holdSQL, ours("ours", int64(7)), "epoch = 8", "", "", ""},
		"it is held by a later one":     {holdSQL, ours("ours", int64(7)), "epoch = 6", "", "", ""},
	} {
		for _, there := range []bool{true, false} {
			effect.Undone(t, db, func(tx pgx.Tx) {
				pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, otherPartitions))
				returned, does := c.elsewhere, ""
				if there {
					pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, ourPartition))
					pgtest.Exec(t, tx, "update holdfast.consumer_position set "+c.change+" where (consumer, topic, partition) = ('b', 'b', 5)")
					returned, does = c.returned, c.does
				}
				var got string
				changed := strings.Join(effect.Changed(t, tx, positionRows, func() { got = effect.Returned(t, tx, sqlschema.In("", c.sql), c.args...) }), ", ")
				if got != returned || changed != does {
					t.Errorf("%s, where ours is there %v: it returns %q and changes %q, want %q and %q", name, there, got, changed, returned, does)
				}
			})
		}
	}
}

// A consumer stands where its own rows say, and nowhere else.
func TestNeighbours_AConsumerStandsInItsOwnPartitions(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, "p = 5"))
		const sorted = "with s as (%s) select * from s order by 1, 2"
		if got := effect.Returned(t, tx, fmt.Sprintf(sorted, sqlschema.In("", standingsSQL)), "b"); got != "a 5 50 why, b 5 50 why, c 5 50 why" {
			t.Errorf("it stands at %s", got)
		}
	})
}

// What was settled moves our partition, if it is still ours and of the same incarnation: its position upwards, and its checkpoint with that.
func TestNeighbours_WhatWasSettledMovesOurPartition(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, sqlschema.In("", renewSQL))
	token := pgtest.Text(t, db.Pool, sqlschema.In("", incarnationSQL))
	type settled struct {
		epoch, position, checkpoint int64
		token                       string
	}
	save := func(t *testing.T, tx pgx.Tx, s settled) string {
		// The first is a partition that the consumer does not have.
		return effect.Returned(t, tx, sqlschema.In("", saveSQL), "b", []string{"z", "b"}, []int32{5, 5}, []int64{s.epoch, s.epoch}, []int64{s.position, s.position},
			[]int64{s.checkpoint, s.checkpoint}, []int64{1000 + s.checkpoint, 1000 + s.checkpoint}, []string{s.token, s.token})
	}
	release := func(t *testing.T, tx pgx.Tx, s settled) string {
		return effect.Returned(t, tx, sqlschema.In("", releaseSQL), "b", "b", int32(5), s.epoch, s.position, false, s.checkpoint, 1000+s.checkpoint, s.token)
	}
	for name, c := range map[string]struct {
		settled
		saved, released string // what is returned
		row             string // ours afterwards
	}{
		"higher":                       {settled{7, 60, 59, token}, "b 5", "true", "60 59 1059"},
		"higher, without a checkpoint": {settled{7, 60, -1, token}, "b 5", "true", "60 40 1040"},
		"higher, from the first event": {settled{7, 60, 0, token}, "b 5", "true", "60 0 1000"},
		"where it is":                  {settled{7, 50, 49, token}, "b 5", "true", "50 49 1049"},
		"lower":                        {settled{7, 49, 48, token}, "b 5", "true", "50 40 1040"},
		"in an earlier epoch":          {settled{6, 60, 59, token}, "", "", "50 40 1040"},
		"in a later epoch":             {settled{8, 60, 59, token}, "", "", "50 40 1040"},
		"without an incarnation":       {settled{7, 60, 59, ""}, "", "false", "50 40 1040"},
		"in another incarnation":       {settled{7, 60, 59, "g" + token}, "", "false", "50 40 1040"},
	} {
		for by, of := range map[string]struct {
			do       func(t *testing.T, tx pgx.Tx, s settled) string
			returned string
			touches  bool
		}{
			"saved":    {save, c.saved, c.saved != ""},
			"released": {release, c.released, c.released != ""},
		} {
			t.Run(by+" "+name, func(t *testing.T) {
				for _, there := range []bool{true, false} {
					effect.Undone(t, db, func(tx pgx.Tx) {
						pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, otherPartitions))
						returned, row, does := "", "", ""
						if there {
							pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, ourPartition))
							returned, row = of.returned, c.row
							if of.touches {
								does = "bb5"
							}
						}
						var got string
						changed := strings.Join(effect.Changed(t, tx, positionRows, func() { got = of.do(t, tx, c.settled) }), ", ")
						if got != returned || changed != does {
							t.Errorf("where ours is there %v: it returns %q and changes %q, want %q and %q", there, got, changed, returned, does)
						}
						if got := effect.Returned(t, tx, ourRow); got != row {
							t.Errorf("ours is %q afterwards, want %q", got, row)
						}
					})
				}
			})
		}
	}
	// After a crash there is no incarnation, until a node makes one.
	effect.Undone(t, db, func(tx pgx.Tx) {
		pgtest.Exec(t, tx, fmt.Sprintf(thePartitions, "true"))
		pgtest.Exec(t, tx, "delete from holdfast.incarnation")
		if got := save(t, tx, settled{7, 60, 59, token}); got != "" {
			t.Errorf("without an incarnation are saved: %q", got)
		}
		if got := release(t, tx, settled{7, 60, 59, token}); got != "false" {
			t.Errorf("without an incarnation a release says %q", got)
		}
	})
}
