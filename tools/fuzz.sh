#!/bin/sh
# Runs each fuzz target of the module for FUZZTIME. FUZZ, a regexp, picks some of them. Packages are fuzzed JOBS at a time, by default one for
# each processor, with one worker each.
#
# Each run begins with the seeds alone: what earlier runs found interesting would take the time of a short one.
# FUZZCORPUS names a directory that keeps it for long ones. And what is interesting is not minimized, for which
# the fuzzer allows itself a minute each.
set -eu
: "${GO:=go}" "${FUZZTIME:=5s}" "${FUZZ:=^Fuzz}" "${FUZZCORPUS:=}" "${JOBS:=$(nproc 2>/dev/null || echo 2)}"
export GO FUZZTIME FUZZ FUZZCORPUS

if [ $# = 0 ]; then
	dirs=$(find . -name '*_test.go' -not -path './bench/*' -not -path './tools/*' -exec grep -l '^func Fuzz' {} + | sed 's,/[^/]*$,,' | sort -u)
	if [ -z "$dirs" ]; then
		echo "== fuzz: no targets" >&2
		exit 1
	fi
	done=$(mktemp)
	trap 'rm -f "$done"' EXIT
	trap 'exit 130' INT TERM
	echo "$dirs" | xargs -P "$JOBS" -I DIR sh "$0" DIR "$done" || exit 1
	n=$(wc -l <"$done")
	if [ "$n" = 0 ]; then
		echo "== fuzz: no target matches $FUZZ" >&2
		exit 1
	fi
	echo "== fuzz: $n targets passed"
	exit
fi

# One package, $1; what passes gets a line in $2. Status 255 has xargs begin with no other.
dir=$1
tmp=$(mktemp -d)
log=$tmp/log
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

fail() {
	echo "$1"
	cat "$log"
	exit 255
}

# try runs one target. Up to Go 1.26 the end of the time may itself be reported as a
# failure with nothing but "context deadline exceeded" (go.dev/issue/75804): 2 says so.
try() {
	corpus=${FUZZCORPUS:+$FUZZCORPUS/$dir}
	if [ -z "$corpus" ]; then
		corpus=$tmp/corpus
		rm -rf "$corpus"
	fi
	(cd "$dir" && "$tmp/test" -test.run '^$' -test.fuzz "^$1\$" -test.fuzztime "$FUZZTIME" -test.fuzzminimizetime 0 -test.parallel 1 \
		"-test.fuzzcachedir=$corpus") >"$log" 2>&1 && return 0
	if grep -q '^ *context deadline exceeded$' "$log" && ! grep -Eq 'Failing input|panic:|_test\.go:' "$log"; then
		return 2
	fi
	return 1
}

if [ -n "$FUZZCORPUS" ]; then
	FUZZCORPUS=$(realpath -m "$FUZZCORPUS")
fi
# -fuzz has what it measures compiled in.
"$GO" test -C "$dir" -c -fuzz . -o "$tmp/test" . >"$log" 2>&1 || fail "== fuzz: $dir does not compile"
names=$(cd "$dir" && "$tmp/test" -test.list "$FUZZ") || fail "== fuzz: $dir lists no targets: $names"
for name in $(echo "$names" | grep '^Fuzz' || :); do
	what="== fuzz $name in $dir, $FUZZTIME"
	rc=0
	try "$name" || rc=$?
	if [ $rc = 2 ]; then
		what="$what, once more after a deadline of the fuzzer itself"
		rc=0
		try "$name" || rc=$?
	fi
	[ $rc = 0 ] || fail "$what: failed"
	echo "$what: $(grep -o 'execs: [0-9]*' "$log" | tail -n 1 | grep . || echo 'its seeds alone took the time')"
	echo "$name" >>"$2"
done
