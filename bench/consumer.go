package main

import "context"

var consumerFigures = []string{}

// measureConsumer is the place for the consumer's figures: one transaction an event, and Batch: 100, each against a
// hand-written consumer with eight readers.
func measureConsumer(context.Context, *env, *report) error { return nil }
