// Package rc is one reliable connection above the verbs: a queue pair, its
// completion queue and its communication identifier, with what every user of
// them needs. Connections of one device share it: one protection domain, and
// registered memory in large arenas. Connections that are no streams take what
// they need of it: [Poller] with [Side], [Device], [KeepAlive].
//
// # Progress
//
// Completions and events of a connection are handled by one goroutine at a
// time, in order, whoever that is: a reader or writer that waits for them, or
// the provider's goroutine that Notify runs on. The one at work holds the role
// of poller. Whoever finds it taken leaves a mark, and the poller looks once
// more before it gives the role up. It gives it up only with the completion
// queue armed and found empty afterwards, or at rest for a few milliseconds, while
// nobody is parked and nothing pending. So no completion is stranded, and a
// connection that nobody calls into still handles what its peer sends.
package rc
