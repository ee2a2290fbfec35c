#!/bin/sh
# Runs each fuzz target of the module for FUZZTIME. FUZZ, a regexp, picks some of them.
#
# Each run begins with the seeds alone: what earlier runs found interesting would take the time of a short one.
# FUZZCORPUS names a directory that keeps it for long ones. And what is interesting is not minimized, for which
# the fuzzer allows itself a minute each.
set -eu
: "${GO:=go}" "${FUZZTIME:=5s}" "${FUZZ:=^Fuzz}" "${FUZZCORPUS:=}"
tmp=$(mktemp -d)
log=$tmp/log
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# try runs one target. Up to Go 1.26 the end of the time may itself be reported as a
# failure with nothing but "context deadline exceeded" (go.dev/issue/75804): 2 says so.
try() {
	corpus=${FUZZCORPUS:+$(realpath -m "$FUZZCORPUS")/$1}
	if [ -z "$corpus" ]; then
		corpus=$tmp/corpus
		rm -rf "$corpus"
	fi
	"$GO" test -C "$1" -run '^$' -fuzz "^$2\$" -fuzztime "$FUZZTIME" -fuzzminimizetime 0 . \
		-args "-test.fuzzcachedir=$corpus" >"$log" 2>&1 && return 0
	if grep -q '^ *context deadline exceeded$' "$log" && ! grep -Eq 'Failing input|panic:|_test\.go:' "$log"; then
		return 2
	fi
	return 1
}

dirs=$(find . -name '*_test.go' -not -path './bench/*' -not -path './tools/*' -exec grep -l '^func Fuzz' {} + | sed 's,/[^/]*$,,' | sort -u)
if [ -z "$dirs" ]; then
	echo "== fuzz: no targets" >&2
	exit 1
fi
n=0
for dir in $dirs; do
	names=$("$GO" test -C "$dir" -list "$FUZZ" .) || { echo "$names"; exit 1; }
	for name in $(echo "$names" | grep '^Fuzz' || :); do
		n=$((n + 1))
		printf '== fuzz %s in %s, %s: ' "$name" "$dir" "$FUZZTIME"
		rc=0
		try "$dir" "$name" || rc=$?
		if [ $rc = 2 ]; then
			printf 'deadline of the fuzzer itself, once more: '
			rc=0
			try "$dir" "$name" || rc=$?
		fi
		if [ $rc != 0 ]; then
			echo failed
			cat "$log"
			exit 1
		fi
		grep -o 'execs: [0-9]*' "$log" | tail -n 1 | grep . || echo 'its seeds alone took the time'
	done
done
if [ $n = 0 ]; then
	echo "== fuzz: no target matches $FUZZ" >&2
	exit 1
fi
echo "== fuzz: $n targets passed"
