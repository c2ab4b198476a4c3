// Package faultproxy is a TCP proxy between the parts of a system and one of its servers, which can be told to misbehave
// while connections live:
//
//	proxy, err := faultproxy.Start("127.0.0.1:5432")
//	// … parts connect to proxy.Address() …
//	err = proxy.Set(faultproxy.LoseDown()) // from now on answers do not arrive
//	err = proxy.Set(faultproxy.Pass())     // what was held arrives
//
// One fault is in force at a time, for all connections, from one Set to the next. Two at once are two proxies, of which
// one has the other's Address as its target. Up is the way from client to server, down is the way back.
//
//	fault        imitates
//	Pass         a network that works
//	LoseUp/Down  a firewall or a route that loses one direction: Set(Pass()) lets everything arrive late, as TCP's repeats
//	             would, and PassAnew ends connections first, as they end when the loss outlasts TCP's retransmissions
//	Blackhole    a partition, or a machine that is switched off: connections hang, new ones get no answer
//	Refuse       a process that is down on a machine that is up: connection refused; what is connected already stays so
//	ResetAfter   a load balancer or a process that dies: RST to both sides after so many bytes
//	ResetWithin  the same after so much time
//	Slow         a long way with a narrow pipe: latency and bandwidth, in both directions
//	Truncate     a server that dies while it answers: its answer ends anywhere, in the middle of a frame
//	CutCommit    a connection to Postgres that breaks in the moment that hurts: before COMMIT arrives, or between its
//	             being carried out and its answer
//
// What it does not imitate is the loss of packets. The kernel of this machine acknowledges what a proxy has received,
// whether the proxy passes it on or not: a sender whose bytes are held sees no time-out of TCP itself, keep-alive
// probes are answered, and there are no duplicates and no retransmissions. A connection that the target refuses was
// accepted by the proxy already, and is reset instead.
//
// With a seed, what is drawn for the n-th connection since the start, or for the n-th COMMIT since CutCommit was set, is the
// same in every run; whose it is may differ.
package faultproxy
