// Package console is a web page for the person who is on call: where an event is, what waits and why, and dead letters, which can be
// read, edited, replayed and discarded there.
//
//	c, err := console.New(pool, console.Config{
//		Prefix:   "/ops/holdfast",
//		UserFunc: func(r *http.Request) (console.User, error) { return who(r) }, // your own authentication
//	})
//	mux.Handle("/ops/holdfast/", c)
//	go c.Run(ctx) // its charts have the last hour, also while nobody looks
//
// It is an http.Handler for a service of yours, behind the middleware by which you know who asks. The command holdfast console runs it
// on a loopback address for one person.
//
// # What it does with power
//
// A User says what may be done: see payloads, change things. Every change needs a reason, says first how much it would change, and is
// kept with the user's name, as those of holdfast dlq and waiting are. All that it remembers are
// the figures of the last hour, for the charts: several nodes may serve it, if they have one Config.Secret.
//
// Forms carry a token that the console has made of a cookie and the user's name with a secret of its own, and requests from other origins are refused (http.CrossOriginProtection). The
// content security policy allows nothing but the console's own files: no inline code, no frame around it. What events say is escaped by
// html/template. Pages are not cached.
//
// # Live pages
//
// A page is whole as the server sends it, and works without a script. The script asks for the page again every few seconds and puts its
// parts with data-live in the place of the old ones: there is one way to make a page, and no second one for what is new on it. A change
// that takes longer than a second sends its page in parts, with a line for each second.
//
// # Reading order
//
// console.go has the routes, overview.go, find.go, letters.go, waiting.go and paused.go what each page shows, history.go rates and charts,
// counts.go the numbers of the navigation, names.go what filters offer, change.go how something is changed and says how far it is,
// guard.go who may, payload.go and lines.go how a payload and an edit are shown.
package console
