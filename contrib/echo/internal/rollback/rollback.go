// Package rollback tells a guard that a handler has failed after it had answered. The guard takes an answer for success, and rolls back when a
// handler panics: so the error goes through it as a panic, and is an error again behind it.
package rollback

// failed is what a handler returned.
type failed struct{ err error }

// Panic sends a handler's error through the guard.
func Panic(err error) { panic(failed{err}) }

// Recover is for defer, outside of the guard: it makes *err the error of Panic. Other panics go on.
func Recover(err *error) {
	p := recover()
	if p == nil {
		return
	}
	f, ours := p.(failed)
	if !ours {
		panic(p)
	}
	*err = f.err
}
