#!/bin/sh
# All tests, under the race detector where there is what it needs.
set -eu
: "${GO:=go}" "${TESTTIME:=10m}"

cc=$("$GO" env CC)
race=-race
if [ "$("$GO" env CGO_ENABLED)" != 1 ]; then
	why='cgo is off'
	race=
elif ! command -v "${cc%% *}" >/dev/null; then
	why="there is no C compiler ($cc)"
	race=
fi
if [ -n "$race" ]; then
	echo '== tests, -race'
else
	echo "== tests WITHOUT -race: $why"
fi
# Those of bench are of programs that measure, and run without it.
for dir in . $(grep -vx bench tools/modules); do
	(cd "$dir" && "$GO" test $race -shuffle=on -timeout "$TESTTIME" ./...)
done
