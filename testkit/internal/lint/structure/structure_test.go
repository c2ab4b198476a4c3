package main

import (
	"strings"
	"testing"
)

const inbox = "../../../../inbox"

// The ways of an event, in pieces: how it comes in, how its handler runs and fails, and what becomes of it. A method of
// which the event's way is only the caller's (an accessor, a lock) is left out.
const (
	consumed = `Inbox.Consume Inbox.consume consumer.run consumer.generation partition.run partition.assign fences.assign
		partition.read partition.begin partition.delivery registry.newDelivery dispositionOf partition.recognise `
	worked = `partition.dispatch scheduler.add partition.handOut workerPool.add worker.run worker.next worker.take workerPool.take
		worker.work `
	opened = `pipeline.open ledger.queueOpening ledger.queueInsert readInsert pipeline.run admission.inserted
		runner.handle runner.call handlerReturn.judge `
	fails    = `failureOf blame faultOf runner.abort rollback `
	judged   = `history.after decide receiver.afterFailure runner.within runner.transact runner.transactHandler `
	parked   = `queues.store ledger.record fence.queue fence.read queues.queue quota.count quota.enter quota.measures starts.forget `
	dead     = `ledger.deadLetter ledger.record fence.queue fence.read letters.insert fingerprint letters.publish starts.forget `
	reported = `runner.commitTx env.report `
	settled  = `partition.settle tracker.settle partition.conclude scheduler.done `
)

// ways are those of one event: what is handled at once, and what fails and is parked or becomes a dead letter.
var ways = map[string]string{
	"Receive": `Inbox.Receive receiver.receiveAlone registry.newDeliveryOf env.newIntake receiver.receive receiver.first receiver.alone
		pipeline.openAndRun ` + opened + `starts.forget pipeline.commit ` + reported,
	"Receive, parked": `Inbox.Receive receiver.receiveAlone registry.newDeliveryOf env.newIntake receiver.receive receiver.first receiver.alone
		pipeline.openAndRun ` + opened + fails + judged + parked + reported + `env.retried`,
	"Receive, dead": `Inbox.Receive receiver.receiveAlone registry.newDeliveryOf env.newIntake receiver.receive receiver.first receiver.alone
		pipeline.openAndRun ` + opened + fails + judged + dead + reported + `env.notifyDead`,
	"TryReceive, parked": `Inbox.TryReceive receiver.receiveAlone registry.newDeliveryOf env.newIntake receiver.receive receiver.first receiver.alone
		receiver.trying runner.withinHandler runner.transactHandler admission.admit ledger.queueInsert readInsert admission.inserted runner.handle runner.call
		` + fails + `history.after decide receiver.afterFailure runner.within runner.transact runner.transactHandler ` + parked + reported + `env.retried`,
	"ReceiveTx, parked": `Inbox.ReceiveTx receiver.receiveTx registry.newDelivery receiver.underSavepoint admission.admit ledger.queueInsert readInsert
		admission.inserted runner.handle runner.call failureOf blame faultOf rollback history.after decide receiver.afterFailure ` + parked,
	"Store": `Inbox.Store receiver.storeAlone registry.newDeliveryOf env.newIntake receiver.receive receiver.first runner.within runner.transact runner.transactHandler
		` + parked + reported,
	"Consume": consumed + worked + opened + `starts.forget worker.committed env.report ` + settled + `consumer.saveLoop consumer.save`,
	"Consume, parked": consumed + worked + opened + fails + `worker.redo worker.finish env.newIntake receiver.receive receiver.first
		` + judged + parked + reported + `env.retried ` + settled,
	"Consume, dead": consumed + worked + opened + fails + `worker.redo worker.finish env.newIntake receiver.receive receiver.first
		` + judged + dead + reported + `env.notifyDead ` + settled,
	"Consume, a batch that fails": consumed + worked + `partition.taken job.close pipeline.open ledger.queueOpening ledger.queueInsertMany
		readInsertMany pipeline.run runner.handle runner.call handlerReturn.judge ` + fails + `worker.redo partition.split scheduler.split`,
	"Consume, a follower": consumed + worked + `partition.follower scheduler.follower usage.add pipeline.open ledger.queueOpening queues.queueFollowers
		quota.measures queues.readFollowers pipeline.run worker.committed env.report ` + settled,
	"Consume, parked after a crash": consumed + `env.newIntake partition.replaySerially partition.exclusively partition.count partition.untilAnswered
		starts.count receiver.receive receiver.first receiver.alone pipeline.openAndRun ` + opened + fails + judged + parked + reported + `env.retried
		partition.settle`,
	"Run": `Inbox.Run Inbox.runStored backlog.workStored claims.claim claims.claimOf readClaimed scanClaimed backlog.work backlog.workOne runner.transactHandler runner.handle
		runner.call backlog.settle backlog.remove claims.queueNext readNext runner.commitTx env.reportStored`,
	"Run, parked again": `Inbox.Run Inbox.runStored backlog.workStored claims.claim claims.claimOf readClaimed scanClaimed backlog.work backlog.workOne runner.transactHandler
		runner.handle runner.call handlerReturn.judge ` + fails + `history.after decide backlog.writeDown runner.transact runner.transactHandler backlog.postpone runner.commitTx env.retried
		env.reportStored`,
	"Run, dead": `Inbox.Run Inbox.runStored backlog.workStored claims.claim claims.claimOf readClaimed scanClaimed backlog.work backlog.workOne runner.transactHandler
		runner.handle runner.call handlerReturn.judge ` + fails + `history.after decide backlog.writeDead backlog.writeDown runner.transact runner.transactHandler backlog.giveUp letters.insert
		fingerprint letters.publish backlog.remove runner.commitTx env.notifyDead env.reportStored`,
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
	if n := p.methods("Inbox"); n > 22 {
		t.Errorf("*Inbox has %d methods, at most 22: give a new one to the part that owns its state", n)
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
