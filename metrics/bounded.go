package metrics

import "sync"

// bounded passes the first names through and calls all later ones rest, so that a label has few values whatever a
// program does.
type bounded struct {
	most       int
	none, rest string

	mu   sync.RWMutex
	seen map[string]bool
}

func (b *bounded) name(name string) string {
	if name == "" {
		return b.none
	}
	b.mu.RLock()
	known, full := b.seen[name], len(b.seen) >= b.most
	b.mu.RUnlock()
	switch {
	case known:
		return name
	case full:
		return b.rest
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = map[string]bool{}
	}
	if !b.seen[name] && len(b.seen) >= b.most {
		return b.rest
	}
	b.seen[name] = true
	return name
}

func (b *bounded) has(name string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.seen[name]
}

// topicNames are the values of the topic label. Topics to which something was published and those that only have trouble take no
// room from each other: anyone who may write events can name any number of topics that do not exist.
type topicNames struct {
	published, troubled bounded
}

func newTopicNames() *topicNames {
	const troubled = maxTopics / 4
	return &topicNames{
		published: bounded{most: maxTopics - troubled, none: "unnamed", rest: "other"},
		troubled:  bounded{most: troubled, none: "unnamed", rest: "other"},
	}
}

// inTrouble is the value for a topic that may never have taken an event.
func (n *topicNames) inTrouble(topic string) string {
	if n.published.has(topic) {
		return topic
	}
	return n.troubled.name(topic)
}

// ofCall is the value for the topic of a call of the broker, and what it answered.
func (n *topicNames) ofCall(topic string, errs []error) string {
	for _, err := range errs {
		if err == nil {
			return n.published.name(topic)
		}
	}
	return n.inTrouble(topic)
}
