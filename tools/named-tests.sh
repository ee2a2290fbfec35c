#!/bin/sh
# Pages of docs that name tests, package.TestName: each must exist in the package that is named. Rows of verbstest are functions of its
# own, outside of test files.
set -eu

bad=0
for page; do
	echo "== rules: $page names tests that exist"
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
done
exit $bad
