#!/usr/bin/env bash
# mess.sh DIR - what a careless agent leaves behind. Started in a turn by
# demo.sh. Every process writes a heartbeat file in DIR and records who it is
# (pid and start time), so that its end can be proved. All of them stop by
# themselves after a minute, whatever happens.
set -u
dir=$1 role=${2:-main} n=${3:-0}

# me NAME: record pid and start time (field 22 of stat, whose second field
# holds no space for a bash).
me() {
	local stat
	printf %s "$1" >"/proc/$BASHPID/comm" # so that people see who is who
	read -r -a stat <"/proc/$BASHPID/stat"
	echo "$BASHPID ${stat[21]}" >>"$dir/$1.pid"
}
beat() { # beat NAME: a heartbeat ten times a second
	me "$1"
	for _ in {1..600}; do
		echo "$SECONDS" >>"$dir/$1.beat"
		sleep 0.1
	done
}

case $role in
setsid) beat setsid ;;
daemon) beat daemon ;;
stubborn)
	trap '' TERM INT HUP
	beat stubborn
	;;
hop) # the moving target: each lives 20 ms, and is replaced before it goes
	me hop
	echo "$n" >>"$dir/hop.beat"
	sleep 0.02
	[ "$n" -ge 3000 ] || setsid "$0" "$dir" hop $((n + 1)) &
	exit
	;;
main)
	setsid "$0" "$dir" setsid </dev/null >/dev/null 2>&1 &
	# Twice forked, the middle one gone, nothing of us in its environment.
	(env -i "PATH=$PATH" setsid "$0" "$dir" daemon </dev/null >/dev/null 2>&1 &)
	"$0" "$dir" stubborn &
	"$0" "$dir" hop &
	beat main
	;;
esac
