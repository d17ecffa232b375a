#!/bin/bash
# deps.sh - install the Debian packages that the tests and the demo need and
# that are missing. Does nothing, quickly, where all are there.
#
# usage: deps.sh [demo]
#
#   demo   only what the demo needs
#
# Needs root and apt-get only when something is missing. What it installs does
# not touch how the machine runs: no service of it is started for the tests.
set -eu

demo='procps util-linux'
test="systemd systemd-sysv dbus dbus-user-session libpam-systemd
	qemu-system-x86 busybox-static mmdebstrap debian-archive-keyring
	e2fsprogs xz-utils curl python3 nodejs git tmux openssh-client chromium-headless-shell
	wine64 tini dumb-init catatonit bash crun runc"
case ${1-} in
demo) want=$demo ;;
'') want="$demo $test" ;;
*) sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2 ;;
esac

say() { echo "deps.sh: $*" >&2; }
command -v dpkg-query >/dev/null || { say "this is no Debian: install what corresponds to: $(echo $want)"; exit 1; }

missing=()
for p in $want; do
	case $(dpkg-query --show --showformat='${db:Status-Status}' "$p" 2>/dev/null) in
	installed) ;;
	*) missing+=("$p") ;;
	esac
done

# The beds fetch a kernel and a root file system with apt-get: its lists must be
# there, and not so old that they name what the mirror no longer has.
cache=${BED_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/beds}
fetch=no
if [ $# -eq 0 ] && [ "$(id -u)" = 0 ]; then
	[ -e "$cache/root-trixie/.complete" ] && ls "$cache"/linux-image-*/initrd >/dev/null 2>&1 || fetch=yes
fi
[ ${#missing[@]} -gt 0 ] || [ $fetch = yes ] || exit 0

if [ "$(id -u)" != 0 ]; then
	say "missing packages: ${missing[*]}"
	say "run it once as root: sudo $0 ${1-}"
	exit 1
fi
command -v apt-get >/dev/null || { say "no apt-get to install: ${missing[*]}"; exit 1; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" >"$log" 2>&1 && return
	say "apt-get $* failed:"
	tail -n 20 "$log" >&2
	exit 1
}
if [ -z "$(find /var/lib/apt/lists -maxdepth 1 -name '*_Packages*' -mmin -1440 -print -quit 2>/dev/null)" ]; then
	say "apt-get update"
	apt update
fi
if [ ${#missing[@]} -gt 0 ]; then
	say "installing ${missing[*]}"
	apt install -y --no-install-recommends "${missing[@]}"
fi
