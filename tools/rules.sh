#!/bin/sh
# Rules of the source that no compiler checks: unsafe only in files whose name says so,
# cgo only in rdmacore, and codecs that compile for a big-endian machine.
set -eu
: "${GO:=go}"

# using lists the Go files that import the package $1.
using() {
	find . -name '*.go' -exec grep -lE "^(import )?[[:space:]]*([A-Za-z_.]+ )?\"$1\"[[:space:]]*(//.*)?\$" {} +
}

echo '== rules: unsafe only in *_unsafe*.go, cgo only in internal/verbs/rdmacore'
bad=$(using unsafe | grep -Ev '_unsafe(_[a-z0-9]+)*\.go$' || :)
if [ -n "$bad" ]; then
	echo "unsafe outside a file named *_unsafe.go or *_unsafe_<os>.go:"
	echo "$bad"
	exit 1
fi
bad=$(using C | grep -v '^\./internal/verbs/rdmacore/' || :)
if [ -n "$bad" ]; then
	echo "cgo outside internal/verbs/rdmacore:"
	echo "$bad"
	exit 1
fi

echo '== rules: big-endian (linux/s390x)'
GOOS=linux GOARCH=s390x CGO_ENABLED=0 "$GO" vet ./...
