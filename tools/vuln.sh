#!/bin/sh
# govulncheck of every module: known vulnerabilities that the code reaches. VULNDB is the database, by default Go's own;
# a copy of it may be a directory, file:///path. Where that of Go cannot be reached nothing is checked, and that is said.
set -eu
: "${GO:=go}" "${VULNDB:=}"
modfile=$(pwd)/tools/go.mod
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# check DIR DB PACKAGES has the status of govulncheck: 0 nothing found, 3 something found.
check() {
	rc=0
	(cd "$1" && "$GO" tool -modfile="$modfile" govulncheck -db "$2" "$3") >"$log" 2>&1 || rc=$?
	sed -i '/^exit status [0-9]*$/d' "$log"
	grep -q '^Your code is affected by' "$log" && rc=3 # go tool turns the status into 1
	return $rc
}

echo '== lint: govulncheck'
rc=0
check . "file://$(pwd)/tools/testdata/vulndb" ./internal/verbs/shm || rc=$?
if [ $rc != 3 ] || ! grep -q GO-2026-0000 "$log"; then
	cat "$log"
	echo 'govulncheck does not find what tools/testdata/vulndb has for it to find'
	exit 1
fi
for dir in . test $(cat tools/modules); do
	rc=0
	check "$dir" "${VULNDB:-https://vuln.go.dev}" ./... || rc=$?
	if [ $rc = 0 ]; then
		echo "== $dir: no known vulnerability is reached"
		continue
	fi
	if [ $rc != 3 ] && [ -z "$VULNDB" ] && grep -q 'fetching vulnerabilities' "$log"; then
		cat "$log"
		echo '== NOT CHECKED for known vulnerabilities: https://vuln.go.dev cannot be reached from here. VULNDB=file:///directory names a copy.'
		exit 0
	fi
	cat "$log"
	echo "== $dir: govulncheck found something, or failed"
	exit 1
done
