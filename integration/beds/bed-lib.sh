# bed-lib.sh - what the three beds share; sourced, not run.
# shellcheck shell=bash disable=SC2034
#
# A bed runs a real systemd over an overlay: below, a root file system of the
# host (its own "/" by default) that is never written; above, a tmpfs that is
# thrown away.  make_layer prepares, in a plain directory, the files that the
# overlay's top gets before systemd starts, so that the guest itself only has to
# do one `rm` and one `cp`.

# Options that all beds take; sets the globals below, leaves COMMAND in CMD.
bed_root=/ bed_rw=() bed_ro=() bed_chdir=$PWD bed_env=() bed_props=() bed_uid=''
bed_timeout=600 bed_boot_timeout=60 bed_journal='' bed_linger=no bed_nobus=no CMD=()
bed_common_usage() {
	cat >&2 <<-'EOT'
	  --root DIR      root file system to boot (default: the host's own)
	  --rw DIR        show DIR of the host there, writable (repeatable)
	  --ro DIR        show DIR of the host there, read-only (repeatable; without
	                  --root only needed for file systems other than the host's
	                  root; that of COMMAND and of its working directory come
	                  by themselves)
	  --chdir DIR     working directory of COMMAND (default: the current one)
	  --env NAME[=V]  hand the variable to COMMAND (repeatable)
	  --uid USER      run COMMAND as USER; every bed has a user "bed" (uid 4242)
	  --linger        start the user manager of "bed" during the boot
	  --prop K=V      property of COMMAND's unit, e.g. Delegate=yes (repeatable)
	  --no-bus        wait for COMMAND without the bed's bus, which it then may
	                  end; its output comes when it is over
	  --timeout S     for COMMAND (default 600); exit status 124
	  --boot-timeout S  for the boot (default 60); exit status 125
	  --journal FILE  write the bed's journal there at the end
	COMMAND's stdin is /dev/null; its stdout and stderr come out as they are.
	exit status: COMMAND's own; 124 timed out; 125 the bed failed.
	BED_VERBOSE=1 in the environment reports the times taken.
	EOT
}
# bed_option ARGS...: takes one option off ARGS; BED_SHIFT says how many words
# it was (0: not a common option).
bed_option() {
	BED_SHIFT=2
	case $1 in
	--root) bed_root=$(readlink -e "$2") || die "no such root: $2" ;;
	--rw) bed_rw+=("$(readlink -e "$2")") || die "no such directory: $2" ;;
	--ro) bed_ro+=("$(readlink -e "$2")") || die "no such directory: $2" ;;
	--chdir) bed_chdir=$(readlink -e "$2") || die "no such directory: $2" ;;
	--env) case $2 in *=*) bed_env+=("$2") ;; *) bed_env+=("$2=${!2-}") ;; esac ;;
	--uid) bed_uid=$2 ;;
	--linger) bed_linger=yes BED_SHIFT=1 ;;
	--no-bus) bed_nobus=yes BED_SHIFT=1 ;;
	--prop) bed_props+=("$2") ;;
	--timeout) bed_timeout=$2 ;;
	--boot-timeout) bed_boot_timeout=$2 ;;
	--journal) bed_journal=$2 ;;
	*) BED_SHIFT=0 ;;
	esac
}

die() { echo "${0##*/}: $*" >&2; exit 125; }
now_ms() { local t=${EPOCHREALTIME/./}; echo $((t / 1000)); }
say() { [ -z "${BED_VERBOSE-}" ] || echo "${0##*/}: $*" >&2; }

# bed_autobind: COMMAND and its working directory have to be there; where the bed
# does not show them anyway, their directories are shown read-only.
bed_autobind() {
	local cmd=${CMD[0]} d
	case $cmd in /* | */*) ;; *) cmd='' ;; esac
	case $cmd in /* | '') ;; *) cmd=$bed_chdir/$cmd ;; esac
	for d in "$bed_chdir" "$cmd"; do
		case $d in '' | / | /dev | /dev/* | /proc/* | /sys/* | /run/*) continue ;; esac
		if [ "$bed_root" != / ]; then
			[ ! -e "$bed_root$d" ] || continue
		else
			[ "$(stat -Lc %d "$d")" != "$(stat -c %d /)" ] || continue
		fi
		[ -d "$d" ] || d=$(dirname "$d")
		bed_ro+=("$d")
	done
}

# The systemd-run command line that runs COMMAND as a unit: RUN.
# A unit with PAMName= is starting for as long as COMMAND runs (systemd 252), so
# starting has no end of its own.
# --pipe hands the caller's stdin (always /dev/null), stdout and stderr to it.
bed_systemd_run() {
	local e
	case ${CMD[0]} in
	/*) ;;
	*/*) CMD[0]=$bed_chdir/${CMD[0]} ;; # systemd-run wants it absolute
	esac
	RUN=(systemd-run --quiet --service-type=exec
		--unit=bed-command --property=TimeoutStartSec=infinity "--working-directory=$bed_chdir")
	if [ "$bed_nobus" = yes ]; then
		RUN=(bash -c "$BED_NOBUS" - "${RUN[@]}" --property=StandardOutput=file:/run/bed-unit.out
			--property=StandardError=file:/run/bed-unit.err)
	else
		RUN+=(--wait --pipe --collect)
	fi
	[ -z "$bed_uid" ] || RUN+=("--uid=$bed_uid")
	for e in "${bed_env[@]}"; do RUN+=("--setenv=$e"); done
	for e in "${bed_props[@]}"; do RUN+=("--property=$e"); done
	# systemd expands $NAME in the words of a unit's command; $$ is a plain $.
	RUN+=(-- "${CMD[@]//\$/\$\$}")
}

# systemd-run --wait hangs on the system bus; systemctl, as root, does not. A
# unit that has ended well is forgotten and then reads as inactive; while the
# manager replaces itself nothing can be read at all.
# shellcheck disable=SC2016
BED_NOBUS='
	show() { systemctl show --property="$1" --value bed-command.service 2>/dev/null; }
	trap "cat /run/bed-unit.out; cat /run/bed-unit.err >&2; exit 143" TERM
	"$@" || [ "$(show ActiveState)" = failed ] || exit 125
	while sleep 0.05; do
		case $(show ActiveState) in
		inactive) rc=0; break ;;
		failed)
			rc=$(show ExecMainStatus)
			[ "$(show ExecMainCode)" = 1 ] || rc=255
			break
			;;
		esac
	done
	cat /run/bed-unit.out
	cat /run/bed-unit.err >&2
	exit "$rc"
'

# Units that a bed does not want: they would touch the machine (in namespaces),
# need devices or modules that are not there, or just take time.
BED_MASK=(systemd-sysctl.service systemd-modules-load.service
	systemd-remount-fs.service systemd-udevd.service systemd-udev-trigger.service
	systemd-udevd-control.socket systemd-udevd-kernel.socket
	systemd-tmpfiles-clean.timer systemd-tmpfiles-setup-dev.service
	systemd-tmpfiles-setup-dev-early.service
	systemd-update-utmp.service systemd-update-utmp-runlevel.service
	systemd-sysusers.service systemd-random-seed.service systemd-timesyncd.service
	systemd-networkd.service systemd-resolved.service systemd-binfmt.service
	systemd-hwdb-update.service systemd-firstboot.service modprobe@.service
	sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount
	sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount
	proc-sys-fs-binfmt_misc.automount systemd-initctl.socket
	tmp.mount getty.target console-getty.service)

# Paths that are removed from the overlay: so no unit of another package, no
# SysV script, no fstab and no lasting journal comes in.  /.dockerenv would make
# systemd take the bed for a docker container.
BED_REMOVE='etc/systemd/system/* etc/systemd/user/* etc/rc?.d/* etc/fstab etc/crypttab'
BED_REMOVE+=' etc/machine-id var/log/journal .dockerenv'

# make_layer DIR: the files that are added.
make_layer() {
	local l=$1 u
	mkdir -p "$l/etc/systemd/system/multi-user.target.wants" \
		"$l/etc/systemd/system.conf.d" "$l/etc/tmpfiles.d" \
		"$l/home/bed" "$l/var/lib/systemd/linger"
	for u in "${BED_MASK[@]}"; do ln -s /dev/null "$l/etc/systemd/system/$u"; done
	ln -s /lib/systemd/system/multi-user.target "$l/etc/systemd/system/default.target"
	printf '%s\n' '[Manager]' DefaultTimeoutStopSec=12s >"$l/etc/systemd/system.conf.d/bed.conf"
	# Debian's tmp.conf empties /tmp at boot; tests may live there.
	ln -s /dev/null "$l/etc/tmpfiles.d/tmp.conf"
	tr -d - </proc/sys/kernel/random/uuid >"$l/etc/machine-id"
	echo bed >"$l/etc/hostname"
	for u in passwd group shadow; do cp -p "$bed_root/etc/$u" "$l/etc/$u"; done
	grep -q '^bed:' "$l/etc/passwd" || {
		echo 'bed:x:4242:4242::/home/bed:/bin/bash' >>"$l/etc/passwd"
		echo 'bed:x:4242:' >>"$l/etc/group"
		echo 'bed:*:19000:0:99999:7:::' >>"$l/etc/shadow"
	}
	chown 4242:4242 "$l/home/bed"
	[ "$bed_linger" = no ] || : >"$l/var/lib/systemd/linger/bed"
}

# make_job DIR: for beds that cannot be entered from outside (the virtual
# machines), a unit that runs DIR/job.sh, and that script.  DIR is mounted in
# the guest at /.bed; OUT and ERR are what its job.sh opens for the streams.
make_job() {
	local j=$1 out=$2 err=$3
	cat >"$j/layer/etc/systemd/system/bed-job.service" <<-'EOT'
	[Unit]
	Description=the bed's job
	After=dbus.socket systemd-logind.service
	[Service]
	# Not oneshot: the boot is to be over before COMMAND runs.
	Type=simple
	ExecStart=/bin/bash /.bed/job.sh
	StandardInput=null
	EOT
	ln -s ../bed-job.service "$j/layer/etc/systemd/system/multi-user.target.wants/"
	mkdir -p "$j/layer/.bed"
	bed_systemd_run
	{
		printf 'run=('; printf '%q ' "${RUN[@]}"; printf ')\n'
		printf 'out=%q err=%q cmd_timeout=%q boot_timeout=%q journal=%q\n' \
			"$out" "$err" "$bed_timeout" "$bed_boot_timeout" "${bed_journal:+yes}"
		cat <<-'EOT'
		set -u
		cd /.bed
		finish() {
			[ -z "$journal" ] || journalctl -b --no-pager -o short-precise >journal 2>&1
			echo "$1" >rc.new && mv rc.new rc
			read -r up _ </proc/uptime; echo "$booted $ran $up" >times
			sync -f /.bed
			echo o >/proc/sysrq-trigger # at once: nothing in here is worth keeping
			sleep 60
		}
		read -r booted _ </proc/uptime; ran=$booted
		state=$(timeout "$boot_timeout" systemctl is-system-running --wait 2>&1)
		read -r booted _ </proc/uptime
		case $state in
		running) ;;
		degraded) systemctl --failed --no-legend --plain >degraded ;;
		*) echo "system state: $state" >failed; systemctl list-jobs >>failed; finish 125 ;;
		esac
		for p in /sys/class/virtio-ports/*; do
			[ -e "$p/name" ] || continue
			read -r name <"$p/name"
			[ "$name" = "$out" ] && out=/dev/${p##*/}
			[ "$name" = "$err" ] && err=/dev/${p##*/}
		done
		for t in "$out" "$err"; do case $t in /dev/tty*) stty -F "$t" raw -echo ;; esac; done
		# Through pipes, so that COMMAND sees pipes and may reopen /dev/stdout.
		mkfifo /run/bed-out /run/bed-err
		cat /run/bed-out >"$out" & o=$!
		cat /run/bed-err >"$err" & e=$!
		timeout -k 5 "$cmd_timeout" "${run[@]}" </dev/null >/run/bed-out 2>/run/bed-err
		rc=$?
		read -r ran _ </proc/uptime
		[ $rc -ne 124 ] || systemctl kill -s KILL bed-command.service
		timeout 60 tail --pid=$o -f /dev/null; timeout 60 tail --pid=$e -f /dev/null
		finish $rc
		EOT
	} >"$j/job.sh"
}

# finish_job DIR CONSOLE: on the host, after the guest is gone; exits.
finish_job() {
	local j=$1 rc=125 a b c
	[ ! -s "$j/degraded" ] || sed "s/^/${0##*/}: degraded: /" "$j/degraded" >&2
	[ -z "$bed_journal" ] || cp "$j/journal" "$bed_journal" 2>/dev/null
	if [ -s "$j/rc" ]; then
		rc=$(<"$j/rc")
		read -r a b c <"$j/times" && say "guest: running at $a s, command over at $b s, off at $c s"
	else
		[ ! -s "$j/failed" ] || cat "$j/failed" >&2
		echo "${0##*/}: the guest ended without a result; end of its console:" >&2
		tail -n 40 "$2" | tr -d '\r' | sed 's/^/| /' >&2
	fi
	exit "$rc"
}
