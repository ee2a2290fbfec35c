// Package rdmacore is the provider of real RDMA devices and of Linux's Soft-RoCE:
// libibverbs and librdmacm, behind a small core in C.
//
// The libraries are opened when the first device is wanted, so a program with this package
// starts where they are not, and says what is missing: the headers when it was
// built, the libraries, kernel modules, a device, a permission.
//
// # Crossings
//
// A batch of requests is flattened into memory without Go pointers and posted in one call of C; a batch of
// completions is written straight into the caller's. Nothing of Go's stays behind in C, where objects
// carry tokens, looked up on the way back.
//
// # Notification
//
// The completion queues of a device share a few completion channels. A duplicate of each
// channel's descriptor is in Go's poller, and one goroutine for each takes the notifications and calls the
// queues' Notify. The same holds for a device's asynchronous events and for the connection manager's. No
// connection has a goroutine or thread of its own.
//
// # Queue pairs in the error state
//
// Drivers are not obliged to look at a queue that failed, and rdma_rxe's does not: a receive that is posted then
// waits for ever. So whoever finds a queue pair failed moves it to the error state once more, and so does every post
// after that, which makes the driver flush what it has.
//
// # Datagrams
//
// Identifiers of the port spaces UDP and IPoIB are [verbs.UDCMID]. Groups are the kernel's to join: on RoCE it has those of IPv4,
// no fresh ones, and no port space IPoIB, and says so with numbers that are explained here.
package rdmacore
