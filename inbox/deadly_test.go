package inbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// deadlyChild names the variable that makes the test binary a consumer whose handler may end the process. Its value is
// DSN, brokers and topic, one a line; without the last two it handles stored events.
const deadlyChild = "HOLDFAST_TEST_DEADLY_CHILD"

func runDeadlyChild() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	args := strings.Split(os.Getenv(deadlyChild), "\n")
	pool, err := pgxpool.New(ctx, args[0])
	if err == nil {
		var in *Inbox
		in, err = New(pool, Config{Consumer: "billing", StopTimeout: time.Second, Grace: time.Second, Retry: retry.Policy{Attempts: 3, Base: time.Millisecond, Cap: time.Millisecond}})
		if err == nil {
			in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if e.ID == "deadly" {
					os.Exit(7)
				}
				if len(args) == 1 {
					time.Sleep(100 * time.Millisecond) // sleep: those beside it have begun when the process ends
				}
				return effectOf(ctx, tx, e)
			})
		}
		switch {
		case err != nil:
		case len(args) == 1:
			err = in.Run(ctx)
		default:
			err = in.Consume(ctx, kafkaGroup(groupConfig{Brokers: strings.Split(args[1], ","), GroupID: "group-of-" + args[2], Topics: []string{args[2]},
				SessionTimeout: time.Minute, HeartbeatInterval: 50 * time.Millisecond})) // dropMembers ends the sessions of the dead
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// untilItLasts starts the consumer again and again, until one does not end by its handler. That one is stopped when the work is done. It returns
// how many have ended, and calls ended after each.
func (b *bundle) untilItLasts(args []string, done func() bool, ended func()) (ends int) {
	b.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		if time.Now().After(deadline) {
			b.Fatal("the process still ends")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), deadlyChild+"="+strings.Join(args, "\n"), "PGAPPNAME=deadly")
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		exited := make(chan error, 1)
		go func() { exited <- cmd.Wait() }()
		var err error
		stopped := false
		for waiting := true; waiting; {
			select {
			case err = <-exited:
				waiting = false
			case <-time.After(20 * time.Millisecond): // Polls the database: the other process tells us nothing.
				if !stopped && done() {
					stopped = true
					_ = cmd.Process.Signal(syscall.SIGTERM)
				}
			}
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() == 7 {
			ends++
			ended()
			continue
		}
		if err != nil {
			b.Fatalf("the consumer: %v: %s", err, stderr.String())
		}
		return ends
	}
}

func TestDeadly_APayloadThatEndsTheProcessReachesTheLetters(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setupKafka(t, 1)
	events := b.events(0, 6)
	events[2].ID = "deadly"
	b.produce(0, events...)
	ends := b.untilItLasts([]string{b.db.DSN, strings.Join(b.cluster.Brokers, ","), b.topic}, func() bool {
		return b.count("select count(*) from effect") == 5 && b.count("select count(*) from holdfast.inbox") == 6 &&
			b.count("select count(*) from holdfast.consumer_position where position = 6") == 1
	}, b.dropMembers) // A broker waits for a dead member until its session times out.
	// Once on the healthy path, where starts are not counted but the unclean end tells of it, and twice counted.
	if ends != 3 {
		t.Errorf("the process ended %d times, want as often as it has attempts, 3", ends)
	}
	var reason, text string
	if err := b.db.QueryRow(b.Context(), "select reason, errors[1] from holdfast.letter where event_id = 'deadly'").Scan(&reason, &text); err != nil {
		t.Fatal(err)
	}
	if reason != "it ended the process" || !strings.Contains(text, "3 times") {
		t.Errorf("letter says %q, %q", reason, text)
	}
	if n := b.count("select count(*) from holdfast.start"); n != 0 {
		t.Errorf("%d counts of starts were left behind", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.consumer_position where clean and position = 6"); n != 1 {
		t.Error("the position is not clean at 6")
	}
}

// What else was in a call when the process ended is not to blame for it.
func TestDeadly_AStoredEventThatEndsTheProcessTakesNoOtherWithIt(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	in := b.inbox()
	for i := range 12 {
		id := fmt.Sprint("e", i)
		if i == 5 {
			id = "deadly"
		}
		if _, err := in.Store(b.Context(), event(id, "key of "+id)); err != nil {
			t.Fatal(err)
		}
	}
	ends := b.untilItLasts([]string{b.db.DSN}, func() bool { return b.count("select count(*) from holdfast.stored") == 0 }, func() {
		wait.Until(t, "nothing that it sent is carried out any more", func() bool {
			return b.count("select count(*) from pg_stat_activity where application_name = 'deadly' and datname = current_database()") == 0
		})
		pgtest.Exec(t, b.db, "update holdfast.stored set lease_until = now() - interval '1 second' where lease_until > now()") // as time passes
	})
	if ends != 3 {
		t.Errorf("the process ended %d times, want as often as the event has attempts, 3", ends)
	}
	if got := pgtest.Text(t, b.db, "select string_agg(event_id || ': ' || reason, ', ') from holdfast.letter"); got != "deadly: it was started too often and never finished" {
		t.Errorf("dead letters are %s", got)
	}
	if n := b.count("select count(*) from effect"); n != 11 {
		t.Errorf("%d of the other 11 events were handled", n)
	}
}

// dropMembers removes the members of the consumer's group, as the broker does when their sessions time out.
func (b *kafkaBundle) dropMembers() {
	b.Helper()
	client, group := b.cluster.Client, "group-of-"+b.topic
	groups, err := client.DescribeGroups(b.Context(), &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		b.Fatal(err)
	}
	leave := &kafka.LeaveGroupRequest{GroupID: group}
	for _, m := range groups.Groups[0].Members {
		leave.Members = append(leave.Members, kafka.LeaveGroupRequestMember{ID: m.MemberID})
	}
	left, err := client.LeaveGroup(b.Context(), leave)
	if err == nil {
		err = left.Error
	}
	if err != nil || len(leave.Members) != 1 {
		b.Fatalf("%d members are removed from the group: %v", len(leave.Members), err)
	}
}
