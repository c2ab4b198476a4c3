//go:build linux

// Package torture runs holdfast under faults and judges what became of every event.
//
// A run has a ground: a Postgres, a Kafka, and a proxy between each kind of part and each server. On it stand the parts,
// each a process of its own, which is this program started again: producers, relays and consumers. Each writes down what
// it does (package history). The schedule draws faults by a seed, brings them about, heals them, and waits until all
// that was committed has arrived. At the end package oracle looks at the history and at the ground truth: the table
// written, the records in Kafka, the table effect.
//
// One fault's way: catalogue (faults*.go) → schedule (run.go) → entries Fault, Heal, Recovered → oracle → report.
package torture
