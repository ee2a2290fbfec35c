#!/bin/sh
# docs/field-reports.md: what is marked as not held must be in the list at the end of the page, and nothing else. The tests it names
# are named-tests.sh's.
set -eu

page=docs/field-reports.md
bad=0
text=$(sed '/^## Not held yet/,$d' "$page")
rest=$(sed '1,/^## Not held yet/d' "$page")
marked=$(echo "$text" | grep -iE '^- \*\*[0-9]+\*\*.*\*\*not held' | grep -oE '^- \*\*[0-9]+' || :)
listed=$(echo "$rest" | grep -oE '^- \*\*[0-9]+' || :)
if [ "$marked" != "$listed" ]; then
	echo "$page: marked as not held, and listed at the end:" $marked / $listed
	bad=1
fi
# Each report is there once, in order, with a test or words.
echo "$text" | grep -oE '^- \*\*[0-9]+' | tr -dc '0-9\n' >"${TMPDIR:-/tmp}/field-reports.$$"
sort -nuc "${TMPDIR:-/tmp}/field-reports.$$" || bad=1
rm -f "${TMPDIR:-/tmp}/field-reports.$$"
exit $bad
