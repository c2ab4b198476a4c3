package relay

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// statements are the constants of queries.go, for the configured schema.
type statements struct {
	readPage, readPlanned, readTransactions, readCuts, readBacklog, probeLanes, ensureIncarnation,
	readServer, beatRelay, leaveRelay, claimLanes, saveLanes, releaseLane,
	fenceLane, loadWaiting, loadHeld, parkEvents, mendHead,
	closeLetters, readDue, readProbe, deleteParked, delayParked, buryParked,
	wakeQueues, wakeTopic, moveScheduled, readRing, readBirth, replaceCluster,
	adoptSnapshot, adoptLock, adoptEvents, adoptLanes, adoptSequence, adoptIncarnation,
	adoptBirthGone, adoptBirth, turnRing, reclaimSegment, publishLetter string
}

func newStatements(schema string) *statements {
	in := func(s string) string { return sqlschema.In(schema, s) }
	return &statements{
		readPage:          in(readPage),
		readPlanned:       in(readPlanned),
		readTransactions:  in(readTransactions),
		readCuts:          in(readCuts),
		readBacklog:       in(readBacklog),
		probeLanes:        in(probeLanes),
		ensureIncarnation: in(ensureIncarnation),
		readServer:        in(readServer),
		beatRelay:         in(beatRelay),
		leaveRelay:        in(leaveRelay),
		claimLanes:        in(claimLanes),
		saveLanes:         in(saveLanes),
		releaseLane:       in(releaseLane),
		fenceLane:         in(fenceLane),
		loadWaiting:       in(loadWaiting),
		loadHeld:          in(loadHeld),
		parkEvents:        in(parkEvents),
		mendHead:          in(mendHead),
		closeLetters:      in(closeLetters),
		readDue:           in(readDue),
		readProbe:         in(readProbe),
		deleteParked:      in(deleteParked),
		delayParked:       in(delayParked),
		buryParked:        in(buryParked),
		wakeQueues:        in(wakeQueues),
		wakeTopic:         in(wakeTopic),
		moveScheduled:     in(moveScheduled),
		readRing:          in(readRing),
		readBirth:         in(readBirth),
		replaceCluster:    in(replaceCluster),
		adoptSnapshot:     in(adoptSnapshot),
		adoptLock:         in(adoptLock),
		adoptEvents:       in(adoptEvents),
		adoptLanes:        in(adoptLanes),
		adoptSequence:     in(adoptSequence),
		adoptIncarnation:  in(adoptIncarnation),
		adoptBirthGone:    in(adoptBirthGone),
		adoptBirth:        in(adoptBirth),
		turnRing:          in(turnRing),
		reclaimSegment:    in(reclaimSegment),
		publishLetter:     in(publishLetter),
	}
}
