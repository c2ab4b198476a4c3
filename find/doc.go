// Package find answers the question of the person who is on call: where is my event?
//
//	found, err := find.Event(ctx, pool, find.Query{ID: "0199c1a5-…"})
//	for _, s := range found.Sightings {
//		fmt.Println(s.Place, s.Says)
//	}
//
// It looks in every place of one database where an event may be, in the order of an event's way: scheduled, log, parked, stored,
// inbox, start, letter, action. Producers and consumers with databases of their own are asked one after the other. It reads no payload
// and no header, and changes nothing.
//
// Nowhere says what may have become of an event that is in no place.
package find
