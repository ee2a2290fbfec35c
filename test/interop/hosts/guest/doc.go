// Package guest has the tests that run within one of the two guests, where package hosts' tests (the directory above) take
// them: the build tag guest selects them.
package guest
