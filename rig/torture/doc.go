//go:build linux

// Torture runs holdfast under faults, and reports what became of every event. See docs/project/torture.md.
//
//	go run ./rig/torture -for 3m
//
// A run has a ground: a Postgres, a Kafka, and a proxy between each kind of part and each server. The parts are
// producers, relays, consumers and a person, each a process of its own: this program started again. Each records what it does
// (package history). The schedule draws faults from a seed, makes them, heals them, and waits until everything that was
// committed has arrived. At the end package oracle compares the history with the ground truth: the table written, the
// records in Kafka, the table effect.
//
// The way of a fault: catalogue (faults*.go) → schedule (run.go) → entries Fault, Heal, Recovered → oracle → report.
package main
