package main

import (
	"strings"
	"testing"
)

const inbox = "../../../../inbox"

// ways are those of one event that is handled at once.
var ways = map[string]string{
	"Receive": `Inbox.Receive receiver.receiveAlone receiver.newDeliveryOf receiver.alone receiver.newIntake receiver.receive
		pipeline.openAndRun pipeline.open ledger.queueOpening ledger.queueInsert readInsert pipeline.run admission.inserted
		runner.handle runner.call ledger.forget pipeline.commit runner.commitTx env.report`,
	"Consume": `Inbox.Consume Inbox.consume consumer.run consumer.generation partition.run partition.assign fences.assign
		partition.read partition.begin partition.delivery receiver.newDelivery dispositionOf partition.recognise partition.dispatch
		scheduler.add workerPool.add worker.run worker.next worker.take workerPool.take worker.work
		pipeline.open ledger.queueOpening ledger.queueInsert readInsert pipeline.run admission.inserted runner.handle runner.call
		ledger.forget worker.committed env.report partition.settle tracker.settle partition.conclude scheduler.done
		consumer.saveLoop consumer.save`,
}

func TestTheInboxReadsTopToBottom(t *testing.T) {
	p, err := load(inbox)
	if err != nil {
		t.Fatal(err)
	}
	if missing := p.unnamed(); len(missing) > 0 {
		t.Errorf("the reading order in inbox/doc.go lacks, or invents: %s", strings.Join(missing, " "))
	}
	if _, back := p.references(); len(back) > 5 {
		for _, r := range back {
			t.Logf("%s → %s: %s", r.from, r.to, strings.Join(r.names, ", "))
		}
		t.Errorf("%d references run back, at most 5 may: move what both use below them, or change the order in inbox/doc.go", len(back))
	}
	if n := p.methods("Inbox"); n > 20 {
		t.Errorf("*Inbox has %d methods, at most 20: give a new one to the part that owns its state", n)
	}
	for name, way := range ways {
		stays, err := p.way(strings.Fields(way)...)
		if err != nil {
			t.Errorf("the way of %s: %v", name, err)
			continue
		}
		if file, most := mostStays(stays); most > 2 {
			t.Errorf("the way of %s enters %s %d times, at most 2", name, file, most)
		}
	}
}
