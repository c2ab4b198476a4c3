package operate

// The help of each command.

func (waitingGroupsCmd) Help() string {
	return `It reads all that waits. TYPE is the event type where no node handles that. WHY is what an event waits for:

    scheduled      its time has not come (NotBefore)
    no-handler     no node of its consumer handles its type
    paused         a person has paused its topic, its consumer or its key
    topic          its topic takes no events, for example because it is missing
    partition      its partition takes no events
    behind-event   an earlier event of its key waits
    behind-letter  a dead letter of its key is open (HoldKey): replay or discard it
    dependency     something that its handler needs is away (inbox.Needs): holdfast status shows what
    failed         its last attempt failed, and the next one is at NEXT

An event that is being tried now, or next, waits for none of these.

Example:

    holdfast waiting groups
    holdfast waiting groups --consumer billing`
}

func (waitingListCmd) Help() string {
	return `First what waits in relays, then in consumers, then what is scheduled. It prints no payload. holdfast help waiting groups explains the
column WHY.

Example:

    holdfast waiting list --consumer billing --why no-handler --heads
    holdfast waiting list --why scheduled --topic reminders`
}

func (waitingShowCmd) Help() string {
	return `Why does this event wait, and what went wrong each time? It prints no payload unless you ask for it. An event may wait in several
consumers.

Example:

    holdfast waiting show 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00`
}

func (waitingRetryCmd) Help() string {
	return `When the cause is fixed and the next attempt is minutes away. Attempts stay as they are. In a consumer it leaves out events that wait
for an earlier one of their key or for a dead letter, and those whose handler runs. In relays it takes a topic, or a key
of it; relays may run. What waits because the topic or a partition takes no events needs no retry: relays try one event of
each every 2 seconds on their own, and once it is published, all others follow. What waits for a dependency needs none either: one event tries
it at least every 30 seconds, unless it asks for longer.

Example:

    holdfast waiting retry --consumer billing --type order.placed --reason "the tax service is back"
    holdfast waiting retry --origin relay --topic orders --reason "the broker takes 2 MiB now"`
}

func (waitingGiveUpCmd) Help() string {
	return `For a topic that will not come back, or for events whose keys wait for them in a consumer but which should be handled later. They become
open dead letters, which you can read, edit, discard and replay. Later events of their keys continue without them. Relays may run:
what one is sending is left to it, and if that takes long, the command reports it after 10 seconds. Later events of the topic wait again. If it
is interrupted, the same command continues.

Example:

    holdfast waiting give-up --origin relay --topic orders.v1 --reason "orders.v1 is retired"
    holdfast waiting give-up --consumer billing --type order.split --reason "rolled back, 2.1 brings it again"`
}

func (waitingDiscardCmd) Help() string {
	return `For events that are not needed, or that no node will ever handle, for example of a type that was rolled back.
Each becomes a discarded dead letter, so its payload stays until dlq purge. In all else it works like
give-up.

Example:

    holdfast waiting discard --consumer billing --type order.split --dry-run
    holdfast waiting discard --origin relay --topic tests --reason "it is not read any more"`
}

func (waitingRedirectCmd) Help() string {
	return `For a topic that was renamed or misspelt. The events of each key keep their order, and come after all events of the
key that were written to the other topic before. Relays may run, as for give-up. Later events of the old topic wait there again. If it
is interrupted, the same command continues.

Example:

    holdfast waiting redirect --topic ordres --to orders --reason "misspelt in shop 3.1"`
}

func (waitingCancelCmd) Help() string {
	return `For scheduled events that must not be published after all. Each becomes a discarded dead letter, so its payload stays until dlq
purge. An event whose time has come in the meantime cannot be cancelled, and the command reports where it is.

Example:

    holdfast waiting cancel 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00 --reason "the appointment was called off"`
}

func (dlqGroupsCmd) Help() string {
	return `Start here: each group is one kind of failure, with its newest dead letter as an example.

Example:

    holdfast dlq groups --consumer billing`
}

func (dlqShowCmd) Help() string {
	return `It prints no payload unless you ask for it.

Example:

    holdfast dlq show 4711 --payload`
}

func (Find) Help() string {
	return `Where is my event? It looks for the id in the log and in everything that waits, in the inboxes of consumers and in dead
letters, and reports what the event waits for in each or what became of it there. If producers and consumers have databases of
their own, ask each. It prints no payload. It exits with 1 if nothing is found.

Example:

    holdfast find 0199c1a5-6f3e-7c11-b0a4-4f5dc0ffee00`
}

func (DLQReplay) Help() string {
	return `Fix the cause first. Each dead letter goes back to its relay or consumer, in front of the waiting events of its key.
Unless HoldKey is set, later events may already have been handled. After an interruption the same command continues and
replays none twice.

Steps of a handler (inbox.Step) that are recorded do not run again. With --forget-steps they do, with the same keys: a system that
honors idempotency keys answers with its first result, as long as it remembers the key. To make all its calls new ones, edit the payload.

Example:

    holdfast dlq replay --fingerprint '...' --rate 200 --reason "billing 1.4.2 knows the rate"`
}

func (dlqEditCmd) Help() string {
	return `For a wrong payload. Replay the dead letter afterwards.

Example:

    holdfast dlq edit 4711 fixed.json --reason "typo in the amount"`
}

func (dlqDiscardCmd) Help() string {
	return `For events that should not be handled any more. If later events of the key waited for the dead letter, they continue.

Example:

    holdfast dlq discard 4711 --reason "a test order"`
}

func (dlqPurgeCmd) Help() string {
	return `Keep dead letters for longer than a redelivery can be late (the inbox's retention).

Example:

    holdfast dlq purge --closed --before 30d`
}

// The help of the commands that steer.

func (Pause) Help() string {
	return `For the time that a fix takes. Relays publish no event of a paused topic: its events wait in order, and all others continue. No
handler of a paused consumer begins; its events stay in their topics. The events of a paused key wait, and the other keys continue.
Relays and consumers see it within about a second, also those that start later. holdfast status shows what is paused, and
exits with 1 until it is resumed.

Example:

    holdfast pause --topic orders --reason "the consumer of the mail team is broken"
    holdfast pause --consumer billing --reason "the tax service is away"
    holdfast pause --consumer billing --topic orders --key customer-7 --reason "her account is being repaired"`
}

func (Resume) Help() string {
	return `What waited continues in order, within a few seconds.

Example:

    holdfast resume --topic orders --reason "billing 1.4.2 is deployed"`
}

func (tenantExportCmd) Help() string {
	return `When a tenant asks what you keep of it, or leaves. Each line has the table, the row, and the payload or body as it is stored:
encrypted, if it was. Standard error gets the number of rows of each table, and how many belong to no known tenant. Run it as the owner
of the schema, and in each database that has something of the tenant. docs/guides/tenants.md says how events get a tenant.

Example:

    holdfast tenant export acme > acme.jsonl`
}

func (TenantErase) Help() string {
	return `When a tenant has left. Stop its writers first. Events that wait become tombstones, open dead letters are discarded, and the rest is
deleted, in short transactions, while relays and consumers may run. It reports what remains, and why; after an interruption the same
command continues. Run it as the owner of the schema. What is in a topic stays there until its retention: docs/guides/tenants.md.

Example:

    holdfast tenant erase acme --dry-run
    holdfast tenant erase acme --reason "contract 17 has ended"`
}

func (dlqListCmd) Help() string {
	return `The oldest first, a page at a time. It prints no payload.

Example:

    holdfast dlq list --consumer billing --within 24h`
}
