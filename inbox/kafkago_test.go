package inbox_test

import (
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/kafkago"
)

func init() {
	inbox.SetKafkaGroup(func(c inbox.GroupConfig) inbox.Source {
		g, err := kafkago.NewGroup(kafkago.Connection{Brokers: c.Brokers}, kafkago.GroupConfig{
			GroupID: c.GroupID, Topics: c.Topics, SessionTimeout: c.SessionTimeout, HeartbeatInterval: c.HeartbeatInterval,
			WatchInterval: c.WatchInterval, ReadUncommitted: c.ReadUncommitted, AdoptCommitted: c.AdoptCommitted, SkipDeleted: c.SkipDeleted,
		})
		if err != nil {
			panic(err)
		}
		return g
	})
}
