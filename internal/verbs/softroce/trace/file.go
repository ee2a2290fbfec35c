package trace

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Env is the environment variable that names the file of a trace.
const Env = "RDMANET_PCAP"

// FromEnv returns the process's recorder, or nil if the environment asks for none or the file
// cannot be had, which is told once.
var FromEnv = sync.OnceValue(func() *Recorder {
	name := os.Getenv(Env)
	if name == "" {
		return nil
	}
	r, err := Open(name, "softroce0")
	if err != nil {
		slog.Warn(Env+": no trace is written", "err", err)
		return nil
	}
	return r
})

// Open begins a trace of a device. In the name %p stands for the process's number and %% for a
// percent sign. An older trace of that name is overwritten; while another process writes it, this one takes a name with
// its number. Any other file is left alone. A named pipe that somebody reads serves as well.
func Open(name, device string) (*Recorder, error) {
	if os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid() {
		return nil, errors.New("a program that runs with the rights of another user or group writes no trace")
	}
	name = expand(name)
	f, err := openFile(name)
	if errors.Is(err, errLocked) {
		ext := filepath.Ext(name)
		other := strings.TrimSuffix(name, ext) + "." + strconv.Itoa(os.Getpid()) + ext
		if f, err = openFile(other); err == nil {
			slog.Warn(Env+": another process writes the file, this one takes a name of its own; %p in the name is the process's number",
				"taken", name, "file", other)
		}
	}
	if err != nil {
		return nil, err
	}
	r, err := newRecorder(f, device)
	if err != nil {
		f.close()
		return nil, err
	}
	return r, nil
}

func expand(name string) string {
	return strings.NewReplacer("%%", "%", "%p", strconv.Itoa(os.Getpid())).Replace(name)
}

// file is where a trace goes. After an error it is not used again.
type file interface {
	name() string
	write(b []byte) error
	close()
}

// osFile is a file of the system's.
type osFile struct {
	f       *os.File
	regular bool
	size    int64
}

var (
	errLocked   = errors.New("another process writes it")
	errNoTrace  = errors.New("it exists and is no trace: remove it, or choose another name")
	errNoReader = errors.New("nobody reads the pipe")
)

// openFile opens a file that is then this process's until it dies. What is traced is others'
// business: nobody else may read it.
func openFile(name string) (*osFile, error) {
	flags := os.O_RDWR | os.O_CREATE
	if isPipe(name) {
		flags = os.O_WRONLY // a pipe that one reads oneself has a reader
	}
	f, err := os.OpenFile(name, flags|openFlags, 0o600)
	if errors.Is(err, syscall.ENXIO) {
		err = &os.PathError{Op: "open", Path: name, Err: errNoReader}
	}
	if err != nil {
		return nil, err
	}
	o := &osFile{f: f}
	if err := o.prepare(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return o, nil
}

func isPipe(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.Mode()&os.ModeNamedPipe != 0
}

// prepare takes a file and empties it.
func (o *osFile) prepare() error {
	st, err := o.f.Stat()
	if err != nil {
		return err
	}
	if o.regular = st.Mode().IsRegular(); !o.regular {
		return nil
	}
	if err := lock(o.f); err != nil {
		return err
	}
	var magic [4]byte
	switch n, err := io.ReadFull(o.f, magic[:]); {
	case n == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case le.Uint32(magic[:]) != blockSection:
		return errNoTrace
	}
	if err := o.f.Truncate(0); err != nil {
		return err
	}
	_, err = o.f.Seek(0, io.SeekStart)
	return err
}

func (o *osFile) name() string { return o.f.Name() }

// write writes all or, to a regular file, nothing.
func (o *osFile) write(b []byte) error {
	if !o.regular {
		_ = o.f.SetWriteDeadline(time.Now().Add(patience)) // where it can be had
	}
	if _, err := o.f.Write(b); err != nil {
		o.undo()
		return err
	}
	o.size += int64(len(b))
	return nil
}

// undo takes back what a failed write wrote: a reader does not meet half a packet.
func (o *osFile) undo() {
	if o.regular {
		_ = o.f.Truncate(o.size)
	}
}

func (o *osFile) close() { _ = o.f.Close() }
