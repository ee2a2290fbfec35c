package rdmacore

// Fault is something that this host, or this build, lacks or has wrong.
type Fault struct {
	What string
	Fix  string // what to do about it, often what to type
	Err  error  // nil if What says it all
}

func (f *Fault) Error() string {
	s := f.What
	if f.Fix != "" {
		s += ": " + f.Fix
	}
	if f.Err != nil {
		s += ": " + f.Err.Error()
	}
	return s
}

func (f *Fault) Unwrap() error { return f.Err }

// notBuilt is a fault of the build.
type notBuilt struct{ *Fault }

func (n notBuilt) Unwrap() error { return n.Fault }
