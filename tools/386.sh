#!/bin/sh
# The tests as a 32-bit program, where the machine can run one: 64-bit atomics must be
# aligned there, and int has 32 bits.
set -eu
: "${GO:=go}" "${TESTTIME:=10m}"

if [ "$("$GO" env GOHOSTOS)/$("$GO" env GOHOSTARCH)" != linux/amd64 ]; then
	echo '== tests as linux/386: not on this machine, only compiled'
	exit 0
fi
out=$(GOARCH=386 CGO_ENABLED=0 "$GO" test -run '^$' ./internal/verbs 2>&1) || {
	case "$out" in *'exec format error'*)
		echo '== tests as linux/386: this kernel runs no 32-bit programs, only compiled'
		exit 0
	esac
	echo "$out"
	exit 1
}
echo '== tests as linux/386'
GOARCH=386 CGO_ENABLED=0 "$GO" test -shuffle=on -timeout "$TESTTIME" ./internal/verbs/...
