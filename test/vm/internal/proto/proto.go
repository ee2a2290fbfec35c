// Package proto is what the runner on the host and the agent in the guest say to each other.
//
// They share one virtio-serial port, divided into streams by yamux. The runner opens every stream, and its
// first message is a Hello. A command is one control stream and one stream for each of its standard
// files that is not /dev/null; the latter carry bytes and nothing else.
package proto

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// What a stream is for.
const (
	KindInfo   = "info"   // the agent answers with an Info
	KindRun    = "run"    // a Command, then Signals; the agent answers with Started and Exited
	KindStdin  = "stdin"  // bytes to the command's standard input, until the runner closes
	KindStdout = "stdout" // bytes of the command's standard output, until the agent closes
	KindStderr = "stderr"
)

// Hello is the first message of a stream.
type Hello struct {
	Kind string
	ID   uint64 // of the command
}

// Info describes the guest.
type Info struct {
	Kernel string
	Uptime time.Duration
}

// Command is what the agent shall run.
type Command struct {
	Args  []string // Args[0] is looked up in the guest's PATH
	Env   []string // added to the agent's own
	Dir   string
	Netns string // name of a network namespace, or empty for the initial one

	Stdin, Stdout, Stderr bool // a stream of that kind is there
	StderrToStdout        bool // one pipe for both, which keeps their order
}

// Started tells the process ID, or why there is no process.
type Started struct {
	PID int
	Err string
}

// Signal is sent to the process, or to its whole session.
type Signal struct {
	Signal int
	Group  bool
}

// Exited tells how a process ended.
type Exited struct {
	Code   int // -1 if a signal ended it
	Signal int
	Err    string // of the agent's own: the output may be incomplete
}

const maxMessage = 4 << 20

// Send writes one message.
func Send(w io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("message of %d bytes, at most %d are allowed", len(body), maxMessage)
	}
	_, err = w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

// Receive reads one message and no byte behind it.
func Receive(r io.Reader, message any) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxMessage {
		return fmt.Errorf("message of %d bytes, at most %d are allowed", n, maxMessage)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	return json.Unmarshal(body, message)
}

// Patience is how long either end waits for the other to take anything: a guest of emulated
// processors beside other guests may stand still for seconds.
const Patience = 2 * time.Minute

// Mux is the configuration of yamux at both ends. The runner asks for signs of life itself.
func Mux() *yamux.Config {
	c := yamux.DefaultConfig()
	c.EnableKeepAlive = false
	c.ConnectionWriteTimeout = Patience
	c.StreamOpenTimeout = Patience
	c.StreamCloseTimeout = Patience
	c.MaxStreamWindowSize = 1 << 20
	c.LogOutput = io.Discard
	return c
}
