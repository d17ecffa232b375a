#!/bin/bash
# leftovers.sh - what tests must not leave behind: cgroups, processes and
# directories of theirs. It only reports; it ends and removes nothing.
#
# usage: leftovers.sh list            print what is there now
#        leftovers.sh since FILE      print what is there now and is not in FILE,
#                                     which is an earlier list; exit 1 if any
#
# What is on its way out is given ten seconds.
set -u

list() {
	local mount dir p exe cg name
	while read -r mount; do
		find "$mount" -mindepth 1 -type d \( -name 'pinfold*' -o -name 'bed-*' \) -prune -printf 'cgroup %p\n' 2>/dev/null
	done < <(findmnt -n -t cgroup2 -o TARGET | head -n 1)
	for dir in "${TMPDIR:-/tmp}"/bed-* "${TMPDIR:-/tmp}"/pinfold*; do
		[ ! -e "$dir" ] || echo "file $dir"
	done
	for p in /proc/[0-9]*; do
		exe=$(readlink "$p/exe" 2>/dev/null) || continue
		cg=$(sed -n 's/^0:://p' "$p/cgroup" 2>/dev/null)
		name=${exe##*/}
		case ${name% (deleted)} in
		pinfold | pinfold-init | *.test) ;;
		*) case $cg in */pinfold* | */bed-*) ;; *) continue ;; esac ;;
		esac
		echo "process ${p##*/} $exe in cgroup $cg: $(tr '\0' ' ' <"$p/cmdline" 2>/dev/null | head -c 200)"
	done
}

case ${1-} in
list)
	list | sort
	;;
since)
	for _ in {1..20}; do
		new=$(list | sort | comm -13 "$2" -)
		[ -n "$new" ] || exit 0
		sleep 0.5
	done
	echo "leftovers.sh: the tests left behind:" >&2
	echo "$new" >&2
	exit 1
	;;
*)
	sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
	exit 2
	;;
esac
