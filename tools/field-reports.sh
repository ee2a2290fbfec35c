#!/bin/sh
# docs/field-reports.md names tests: each must exist in the package that is named. Rows of verbstest are functions of its own, outside
# of test files. What is marked as not held must be in the list at the end of the page, and nothing else.
set -eu

page=docs/field-reports.md
echo "== rules: $page names tests that exist"
bad=0
for name in $(grep -oE '`[a-z][a-zA-Z0-9_/-]*\.(Test|Fuzz|test)[A-Z][A-Za-z0-9_]*`' "$page" | tr -d '`' | sort -u); do
	dir=${name%.*} func=${name##*.}
	case $func in
	test*) files="$dir/*.go" ;;
	*) files="$dir/*_test.go" ;;
	esac
	# shellcheck disable=SC2086
	if ! cat $files 2>/dev/null | grep -qE "^func $func\("; then
		echo "$page: there is no $func in $dir"
		bad=1
	fi
done

# What looks like a test and is not named as above would not be looked for.
if grep -noE '`[^`]*(Test|Fuzz)[A-Z][^`]*`' "$page" | grep -vE ':`[a-z][a-zA-Z0-9_/-]*\.(Test|Fuzz|test)[A-Z][A-Za-z0-9_]*`$'; then
	echo "$page: these are not written as package.TestName"
	bad=1
fi

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
