#!/bin/bash
# test.sh - run the tests, and fail also when they leave something behind.
#
# usage: test.sh all     as root: everything, test beds included; installs the
#                        packages that are missing
#                        else: what needs no root
#        test.sh quick   what needs neither root nor a test bed
#
# GO names the go command, TESTFLAGS are more flags for go test. LEFTOVERS=report
# only reports what is left behind: others may be testing on the same machine.
set -eu
cd "$(dirname "$0")/.."
go=${GO:-go}
# Without C: its thread start knows no way around a refused clone3, which some
# tests bring about, and a test binary must run in every bed.
export CGO_ENABLED=0

case ${1-} in
quick)
	exec $go test -short ${TESTFLAGS-} $($go list ./... | grep -v /integration)
	;;
all) ;;
*)
	sed -n '2,/^set -eu/s/^# \{0,1\}//p' "$0" | head -n -1 >&2
	exit 2
	;;
esac

if [ "$(id -u)" != 0 ]; then
	echo "test.sh: not root: the tests of cgroups, systemd and virtual machines are left out; sudo make test runs all" >&2
	exec $go test ${TESTFLAGS-} ./...
fi

scripts/deps.sh
export PINFOLD_TEST_DEPS=1 # what that installs, no test goes without
before=$(mktemp)
trap 'rm -f "$before"' EXIT
scripts/leftovers.sh list >"$before"
status=0
# Two packages at a time: much of what they do is waiting, and each has cgroups,
# directories and namespaces of its own.
$go test -p 2 -timeout 28m ${TESTFLAGS-} ./... || status=$?
$go test -tags faultpoints ${TESTFLAGS-} ./internal/fault || status=$?
scripts/leftovers.sh since "$before" || [ "${LEFTOVERS-}" = report ] || status=1
exit $status
