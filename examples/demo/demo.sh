#!/usr/bin/env bash
# demo.sh - Pinfold in a quarter of a minute: a turn leaves processes behind in
# every way that loses them elsewhere; abandoning it ends all of them and
# nothing else; the script then proves that. "make demo" builds and runs it.
#
# It needs root, or a user with a systemd user manager; without either the turn
# is held without a cgroup, less well. Everything it makes is
# below one temporary directory and one cgroup, and is removed at the end, also
# on Ctrl-C. It exits with 1 when a proof fails.
set -u -o pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${PINFOLD_BIN:-$here/../../bin}
pinfold=$bin/pinfold
[ -x "$pinfold" ] && [ -x "$bin/pinfold-init" ] || { echo "demo: $bin has no pinfold and pinfold-init: run 'make demo'" >&2; exit 1; }

if [ -t 1 ] && [ -z "${NO_COLOR-}" ]; then bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' off=$'\e[0m'; else bold='' green='' red='' dim='' off=''; fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$off"; }
show() { printf '%s$ pinfold %s%s\n' "$dim" "$*" "$off"; "$pinfold" "$@"; }
fail() { printf '%sdemo: %s%s\n' "$red" "$*" "$off" >&2; exit 1; }

tmp=$(mktemp -d "${TMPDIR:-/tmp}/pinfold-demo.XXXXXX") || exit 1
chmod 755 "$tmp"
mkdir "$tmp/beats" && cp "$here/mess.sh" "$tmp/" || exit 1
export PINFOLD_SOCKET=$tmp/run/pinfold.sock
service='' unit='' canary='' parent=''

cleanup() {
	trap '' INT TERM HUP
	# The service is ours alone, so every turn of it is.
	"$pinfold" ps 2>/dev/null | tail -n +2 | while read -r id _; do
		"$pinfold" abandon --grace 0 --leftovers "$id" >/dev/null 2>&1
	done
	[ -z "$unit" ] || systemctl --user stop "$unit" >/dev/null 2>&1
	[ -z "$service" ] || { kill "$service" && wait "$service"; } 2>/dev/null
	[ -z "$canary" ] || { kill "$canary" && wait "$canary"; } 2>/dev/null
	[ -z "$parent" ] || rmdir "$parent" 2>/dev/null
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ------------------------------------------------------------------ the service
serve=("$pinfold" serve --runtime-dir "$tmp/run" --state-dir "$tmp/state" --init "$bin/pinfold-init" --log-level warn)
# A user's login shell is mostly outside the user manager's part of the cgroup
# tree, and the kernel lets nobody move processes across: then the manager has
# to start the service.
own=$(sed -n 's/^0:://p' /proc/self/cgroup)
if [ "$(id -u)" != 0 ] && [[ $own != */user@"$(id -u)".service/* ]] && systemctl --user show-environment >/dev/null 2>&1; then
	unit=pinfold-demo-$$
	systemd-run --user --quiet --collect --unit="$unit" -p Delegate=yes "--setenv=PINFOLD_SOCKET=$PINFOLD_SOCKET" "${serve[@]}" ||
		fail "the user's service manager did not start the service"
else
	# In a session of its own: Ctrl-C is for us, who need it to clean up.
	setsid "${serve[@]}" >"$tmp/log" 2>&1 &
	service=$!
fi
for i in {1..1200}; do
	"$pinfold" doctor --json >"$tmp/host" 2>/dev/null && break
	if [ "$i" = 1200 ] || { [ -n "$service" ] && [ ! -d "/proc/$service" ]; }; then
		cat "$tmp/log" 2>/dev/null
		fail "the service did not start"
	fi
	sleep 0.05
done
field() { sed -n 's/^  "'"$1"'": "\(.*\)",\{0,1\}$/\1/p' "$2"; }
parent=$(field cgroup_parent "$tmp/host")
grade=$(field grade "$tmp/host")
say "A service, private to this demo. It holds turns at grade $grade."

# --------------------------------------------------------- a canary, and a turn
(while :; do
	echo "$SECONDS" >>"$tmp/canary"
	sleep 0.1
done) &
canary=$!
say "A canary outside: process $canary. Nothing may happen to it."

say "A turn, and in it a process that leaves a mess: a setsid child, a daemon forked
twice, one that ignores TERM, and a chain of processes that replace each other
every 20 ms."
turn=$("$pinfold" begin --label "demo: leaves a mess") || fail "no turn"
"$pinfold" show --json "$turn" >"$tmp/turn" || fail "no turn $turn"
cgroup=$(field cgroup "$tmp/turn")
(cd "$tmp" && show run --turn "$turn" --detach -- ./mess.sh beats) || fail "nothing was launched"
names=(main setsid daemon stubborn hop)
for name in "${names[@]}"; do
	for _ in {1..1200}; do
		[ -s "$tmp/beats/$name.beat" ] && break
		sleep 0.05
	done
	[ -s "$tmp/beats/$name.beat" ] || fail "$name did not start"
done
sleep 1
show tree "$turn" || fail "no tree"

# ----------------------------------------------------------------- its ending
say "The turn is abandoned: TERM, a second of grace, then the end."
show abandon --grace 1s "$turn" >"$tmp/receipt" || { cat "$tmp/receipt"; fail "the receipt is not complete"; }
show receipt "$turn" || fail "no receipt"

# ------------------------------------------------------------------ the proof
say "The proof, from outside Pinfold:"
bad=0
prove() { # prove TEXT COMMAND...
	if "${@:2}"; then printf '  %sproved%s  %s\n' "$green" "$off" "$1"; else
		printf '  %sFAILED%s  %s\n' "$red" "$off" "$1"
		bad=1
	fi
}
sizes() { (cd "$tmp/beats" && wc -l -- *.beat); }
quiet() { [ "$before" = "$after" ]; }
identities() { cat "$tmp"/beats/*.pid; }
gone() { # no recorded pid is a process with the recorded start time
	local pid start stat
	while read -r pid start; do
		{ read -r -a stat <"/proc/$pid/stat"; } 2>/dev/null || continue
		[ "${stat[21]}" != "$start" ] || { echo "    $pid is alive: ${stat[*]:0:4}"; return 1; }
	done < <(identities)
}
nogroup() { [ -n "$cgroup" ] && [ ! -e "$cgroup" ]; }
nokeeper() {
	local cmd
	for cmd in /proc/[0-9]*/cmdline; do
		! grep -qa "keeper.--turn.$turn" "$cmd" 2>/dev/null || { echo "    ${cmd%/cmdline} is there"; return 1; }
	done
}
alive() { [ -d "/proc/$canary" ] && [ "$canary_after" -gt "$canary_before" ]; }

before=$(sizes) canary_before=$(wc -l <"$tmp/canary")
sleep 1
after=$(sizes) canary_after=$(wc -l <"$tmp/canary")
for _ in {1..600}; do # on a busy machine it may need more for a heartbeat
	[ "$canary_after" = "$canary_before" ] || break
	sleep 0.05
	canary_after=$(wc -l <"$tmp/canary")
done
prove "no heartbeat in a second, of ${#names[@]} that beat before" quiet
prove "none of $(identities | wc -l) recorded processes (pid and start time) is there" gone
case $grade in
scope | cgroup) prove "the turn's cgroup is gone: $cgroup" nogroup ;;
*) prove "the turn's keeper is gone, which was what held it at grade $grade" nokeeper ;;
esac
prove "the canary lives: $((canary_after - canary_before)) heartbeats in that second" alive
[ "$bad" = 0 ] || fail "a proof failed"
say "Done: everything of the turn ended, and nothing else."
