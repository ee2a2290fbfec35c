package netio

// Attention says who is woken when packets arrive at the socket with the traffic.
type Attention uint8

// Who pays attention to a socket.
const (
	ByOwn    Attention = iota // its own goroutine
	ByNobody                  // those who call Poll again and again take the packets
	BySitter                  // who calls Sit
)
