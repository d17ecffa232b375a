package pid1

import (
	"os"
	"syscall"
)

// Answer is what a command line gets that starts nothing.
type Answer struct {
	Out, Err string
	Code     int
}

// Describe answers a command line that Run came back from. ok is false for one
// that is a mode of pinfold-init's.
func Describe(version string) (a Answer, ok bool) {
	argv, err := syscall.SlicePtrFromStrings(os.Args)
	if err != nil {
		return Answer{Err: "pinfold-init: " + err.Error() + "\n", Code: codeUsage}, true
	}
	envp, _ := syscall.SlicePtrFromStrings(os.Environ())
	var o options
	v, bad, of := parse(&o, list{&argv[0]}, list{&envp[0]})
	if v == verdictMode {
		return Answer{}, false
	}
	switch o.as {
	case asDumb:
		return describeDumb(v, bad), true
	case asTini, asCatatonit:
		return describeTini(v, bad, version, o.as == asCatatonit), true
	}
	return describeSelf(v, bad, of, version), true
}

func describeSelf(v verdict, bad string, of *flag, version string) Answer {
	switch v {
	case verdictHelp:
		return Answer{Out: Usage}
	case verdictVersion:
		return Answer{Out: "tini version " + tiniVersion + " (pinfold-init " + version + ")\n"}
	case verdictLicense:
		return Answer{Out: license}
	case verdictUnknown:
		return Answer{Err: "pinfold-init: unknown option " + bad + "\n" + short, Code: codeUsage}
	case verdictArgument:
		if of != nil {
			return Answer{Err: "pinfold-init: --" + of.long + " wants " + of.describeValue() + ", bad value: " + bad + "\n" + short, Code: codeUsage}
		}
		return Answer{Err: "pinfold-init: bad or missing value: " + bad + "\n" + short, Code: codeUsage}
	}
	return Answer{Err: "pinfold-init: no command\n" + short, Code: codeUsage}
}

// describeValue tells what an option of ours takes.
func (f *flag) describeValue() string {
	switch f.id {
	case flStatus:
		return "the absolute path of a file"
	case flServe:
		return "a program"
	case flOK:
		return "a code from 0 to 255"
	case flRewrite:
		return "FROM:TO, two signals"
	case flPdeath, flStopSignal:
		return "a signal"
	}
	return "a time such as 5s or 500ms"
}

func describeTini(v verdict, bad, version string, catatonit bool) Answer {
	switch v {
	case verdictHelp:
		return Answer{Out: tiniUsage}
	case verdictVersion:
		suffix := ""
		if catatonit {
			suffix = "_catatonit"
		}
		return Answer{Out: "tini version " + tiniVersion + suffix + " (pinfold-init " + version + ")\n"}
	case verdictLicense:
		return Answer{Out: license}
	case verdictUnknown:
		return Answer{Err: "unknown option: " + bad + "\n" + tiniUsage, Code: 1}
	case verdictArgument:
		return Answer{Err: "not a valid value: " + bad + "\n" + tiniUsage, Code: 1}
	}
	return Answer{Err: tiniUsage, Code: 1}
}

// describeDumb answers on standard error, all of it, as scripts expect.
func describeDumb(v verdict, bad string) Answer {
	switch v {
	case verdictHelp:
		return Answer{Err: dumbUsage}
	case verdictVersion:
		return Answer{Err: "dumb-init v" + dumbVersion + "\n"}
	case verdictUnknown:
		return Answer{Err: "dumb-init: unrecognized option '" + bad + "'\n", Code: 1}
	case verdictArgument:
		return Answer{Err: "dumb-init: " + bad + ": want FROM:TO, two signals' numbers up to 31\n", Code: 1}
	}
	return Answer{Err: "Usage: dumb-init [option] program [args]\nTry dumb-init --help for full usage.\n", Code: 1}
}

// The versions whose behaviour is taken on, which some callers parse.
const (
	tiniVersion = "0.19.0"
	dumbVersion = "1.2.5"
)

const short = "usage: pinfold-init [OPTION]... -- COMMAND [ARG]...\nTry pinfold-init --help.\n"

const license = "pinfold-init is free software; its licence comes with it (LICENSE).\n"

// Usage is the help of the init.
const Usage = `usage: pinfold-init [OPTION]... [--] COMMAND [ARG]...

Run COMMAND as the init of a container: pass signals on to it, reap what becomes
an orphan, and end as it ends (128 + N for signal N).

  -g, --group                  send signals to COMMAND's whole process group
      --session                give COMMAND a session of its own
  -c, --single-child           leave COMMAND in our own process group
  -r, --rewrite FROM:TO        pass signal FROM on as TO, or with TO = 0 not at all
      --stop-signal SIG        one more signal that means stop (as TERM, INT, QUIT)
      --stop-timeout TIME      KILL COMMAND that long after a stop signal; a second
                               one does so at once
  -e, --expect CODE            end with 0 where COMMAND's code is CODE
  -p, --parent-death-signal SIG
                               SIG is sent to us, and from us to COMMAND, when our
                               parent ends
  -s, --subreaper              do not say so where this is not PID 1
  -w, --report-reaped          tell of each orphan that is reaped
      --wait-orphans[=TIME]    when COMMAND has ended, wait for its orphans
      --kill-remaining[=TIME]  when COMMAND has ended, TERM what is left, and KILL it
                               after TIME (5s) or a second stop signal
      --serve[=PINFOLD]        run the service beside COMMAND, in the same container;
                               PINFOLD_SOCKET tells COMMAND its socket. Implies
                               --kill-remaining. PINFOLD_GRADE and the like are its
                               options; see pinfold serve --help
      --serve-timeout TIME     how long it may take to be ready (30s) before COMMAND
                               is given up
      --serve-optional         COMMAND starts without it, too
      --cgroup-rw              remount cgroup v2 writable where it is not, for --serve
      --kill-cgroup            at last, KILL what is in the container's cgroup
      --on-start LINE          run this with sh before COMMAND; COMMAND starts only
                               if it ends with 0
      --on-stop LINE           run this with sh when COMMAND has ended
      --status FILE            keep a report there (an absolute path), as JSON
  -P, --pause                  no COMMAND: reap until TERM or INT
  -v, --verbose                say more; three times for every signal
  -q, --quiet                  say nothing but why COMMAND does not start
  -h, --help
  -V, --version

Called as tini, docker-init, dumb-init or catatonit it takes that one's options.
Our own codes: 125 usage, 126 COMMAND cannot be executed, 127 it is not found.
`

const tiniUsage = `tini (pinfold-init)

usage: tini [OPTION]... PROGRAM -- [ARG]... | --version

Run a program under the supervision of a valid init process (pinfold-init)

  --version    the version, if it is the only argument
  -h           this help
  -s           be a subreaper where this is not PID 1
  -p SIGNAL    have SIGNAL sent when the parent ends
  -v           be more verbose; up to three times
  -w           tell of orphans that are reaped
  -g           send signals to the program's process group
  -e CODE      end with 0 where the program's code is CODE
  -l           the licence

TINI_SUBREAPER, TINI_KILL_PROCESS_GROUP and TINI_VERBOSITY do in the environment
what -s, -g and -v do.
`

const dumbUsage = `dumb-init v` + dumbVersion + ` (pinfold-init)
Usage: dumb-init [option] command [[arg] ...]

   -c, --single-child   no session: signals go to the child alone
   -r, --rewrite s:r    pass signal s on as r; with r = 0 not at all
   -v, --verbose        tell of each signal
   -h, --help           this help
   -V, --version        the version
`
