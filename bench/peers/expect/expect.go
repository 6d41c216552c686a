// Package expect ends a program that drives a server when something is not as it has to be.
package expect

import "fmt"

// Must returns the value of a call that has to succeed.
func Must[T any](value T, err error) T {
	That(err == nil, "unexpected error: %v", err)
	return value
}

// That panics with the text unless it holds.
func That(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}
