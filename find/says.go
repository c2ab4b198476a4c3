package find

import (
	"fmt"
	"time"
)

// says puts a sighting into a sentence.
func says(s Sighting) string {
	switch s.Place {
	case "scheduled":
		if s.State == "due" {
			return fmt.Sprintf("its time has come at %s: the relay of lane %d moves it into the log", at(s.NextAt), s.Lane)
		}
		return fmt.Sprintf("it waits for its time, %s, in lane %d", at(s.NextAt), s.Lane)
	case "log":
		return saysLog(s)
	case "parked":
		return saysParked(s)
	case "stored":
		return saysStored(s)
	case "inbox":
		return saysInbox(s)
	case "start":
		return fmt.Sprintf("consumer %s has started its handler %s without an end, last at %s: it may end the process", s.Consumer, times(s.Attempts), at(s.At))
	case "letter":
		who := "the relay"
		if s.Consumer != "" {
			who = "consumer " + s.Consumer
		}
		return fmt.Sprintf("it is dead letter %d of %s, %s since %s, after %s: %s", s.Letter, who, s.State, at(s.At), attempts(s.Attempts), s.Reason)
	default:
		what := s.State
		if s.Letter != 0 {
			what += fmt.Sprintf(" of letter %d", s.Letter)
		}
		if s.Reason != "" {
			what += ": " + s.Reason
		}
		return fmt.Sprintf("%s at %s: %s", s.By, at(s.At), what)
	}
}

func saysLog(s Sighting) string {
	switch s.State {
	case "unread":
		return fmt.Sprintf("it is in the log and not published; relay %s has its lane, %d", s.By, s.Lane)
	case "unowned":
		return fmt.Sprintf("it is in the log and not published; no relay has its lane, %d: start one", s.Lane)
	default:
		return fmt.Sprintf("it is in the log, and the relay of lane %d has read it: it is in its topic, unless it waits in the relay or is a dead letter", s.Lane)
	}
}

func saysParked(s Sighting) string {
	waits := saysWhy(s)
	if s.State == "topic" {
		waits = fmt.Sprintf("topic %s is missing or takes no events", s.Event.Topic)
	}
	return fmt.Sprintf("it waits in the relay of lane %d since %s%s: %s", s.Lane, at(s.At), tried(s), waits)
}

func saysStored(s Sighting) string {
	return fmt.Sprintf("it waits in consumer %s since %s%s: %s", s.Consumer, at(s.At), tried(s), saysWhy(s))
}

// saysWhy says for what an event waits, in the words of package waiting.
func saysWhy(s Sighting) string {
	switch s.State {
	case "runs":
		return "its handler runs"
	case "no-handler":
		return fmt.Sprintf("no node handles its type, %s", s.Event.Type)
	case "paused":
		return "it is paused"
	case "partition":
		return "its partition takes no events"
	case "behind-event":
		return "an earlier event of its key has to go first"
	case "behind-letter":
		return "a dead letter holds its key"
	case "dependency":
		if s.Reason == "" {
			return "something that its handler needs is away"
		}
		return "it waits for " + s.Reason
	case "failed":
		return "it is tried again" + next(s)
	}
	return "its turn has come" + next(s)
}

func saysInbox(s Sighting) string {
	from := ""
	if s.Partition >= 0 {
		from = fmt.Sprintf(" from partition %d, offset %d", s.Partition, s.Offset)
	}
	var what string
	switch s.State {
	case "stored":
		return fmt.Sprintf("consumer %s has taken it in at %s%s, and has not settled it", s.Consumer, at(s.At), from)
	case "handled":
		what = "has handled it"
	case "dead":
		what = "has given it up"
	case "skipped":
		what = "has skipped it: no node handled its type"
	default:
		what = "was told by a person to discard it"
	}
	replay := ""
	if s.Letter != 0 {
		replay = fmt.Sprintf(" of the replay of dead letter %d", s.Letter)
	}
	return fmt.Sprintf("consumer %s %s at %s%s, after %s%s", s.Consumer, what, at(s.At), from, attempts(s.Attempts), replay)
}

// sayReplays names the dead letter in what the inbox says of its replay: the attempts are those of the replay, and the letter has the others.
func sayReplays(all []Sighting) {
	replayed := map[int64]bool{}
	for _, s := range all {
		if s.Place == "action" && s.State == "replay" {
			replayed[s.Letter] = true
		}
	}
	for i := range all {
		s := &all[i]
		if s.Place != "inbox" || s.State != "handled" && s.State != "dead" {
			continue
		}
		for _, l := range all {
			if l.Place == "letter" && l.Consumer == s.Consumer && l.Event.Source == s.Event.Source && replayed[l.Letter] && l.State != "replaying" {
				s.Letter = l.Letter
				s.Says = says(*s)
			}
		}
	}
}

func at(t time.Time) string {
	if t.IsZero() {
		return "an unknown time"
	}
	return t.Format(time.RFC3339)
}

func next(s Sighting) string {
	if s.NextAt.IsZero() {
		return ""
	}
	return ", next at " + at(s.NextAt)
}

// tried says how often an event failed, and of what; "" if it never did.
func tried(s Sighting) string {
	if s.Attempts == 0 {
		return ""
	}
	if s.Error == "" {
		return ", after " + attempts(s.Attempts)
	}
	return fmt.Sprintf(", after %s (%s)", attempts(s.Attempts), s.Error)
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// saysKey puts a use of an Idempotency-Key into a sentence.
func saysKey(u KeyUse) string {
	what := fmt.Sprintf("a request of %s for %s of %s ", u.Scope, u.Operation, at(u.CreatedAt))
	switch u.State {
	case "running":
		what += fmt.Sprintf("runs, %s, with %s done", startsOf(u), stepsOf(u))
	case "interrupted":
		what += fmt.Sprintf("was interrupted after %s, with %s done", startsOf(u), stepsOf(u))
		if u.NextAt.IsZero() {
			return what + ": it runs again when its client sends it again"
		}
		return what + fmt.Sprintf(": it runs again at %s, or when its client sends it again", at(u.NextAt))
	case "omitted":
		what += fmt.Sprintf("was answered with %d, and the body was too long to keep", u.Status)
	case "expired":
		if u.Status == 0 {
			return what + "was never answered, and its key has expired"
		}
		what += fmt.Sprintf("was answered with %d, and its key has expired", u.Status)
	default:
		what += fmt.Sprintf("was answered with %d; repeats get the same until %s", u.Status, at(u.ExpiresAt))
	}
	if u.ResultRef != "" {
		what += ": " + u.ResultRef
	}
	return what
}

func startsOf(u KeyUse) string {
	if u.Attempts == 1 {
		return "its first start"
	}
	return fmt.Sprintf("start %d", u.Attempts)
}

func stepsOf(u KeyUse) string {
	if u.Steps == 1 {
		return "1 step"
	}
	return fmt.Sprintf("%d steps", u.Steps)
}
