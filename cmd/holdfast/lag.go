package main

import (
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/kafkago"
)

// endsOf asks brokers where partitions end, until done is called. It is nil without brokers.
func endsOf(brokers []string, flags *kafkaFlags, env func(string) string) (ends state.Ends, done func(), err error) {
	if len(brokers) == 0 {
		return nil, func() {}, nil
	}
	connection, err := flags.connection(brokers, env)
	if err != nil {
		return nil, nil, program.UsageError{Err: err}
	}
	offsets, err := kafkago.NewOffsets(connection)
	if err != nil {
		return nil, nil, program.UsageError{Err: err}
	}
	return offsets.Ends, offsets.Close, nil
}
