// Package cm is policy: which provider serves an address, what a host name
// means, on which providers a listener listens. The protocols themselves are the providers'.
//
// A [Manager] holds the providers of this build in order of preference.
// Everything that may wait takes a context.
package cm
