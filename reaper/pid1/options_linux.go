package pid1

// persona is the program that we are called as, and whose options we take.
type persona uint8

const (
	asSelf persona = 1 << iota
	asTini
	asDumb
	asCatatonit
)

// options say how to be an init.
type options struct {
	as        persona
	verbosity int // 0 silent (but for what ends us), 1 warnings, 2 notes, 3 each signal

	command list // nil-terminated
	pause   bool // there is no command

	group     bool // signals go to the whole process group
	session   bool // the command gets a session, not only a process group
	noGroup   bool // nor even that
	subreaper bool
	tellReaps bool
	pdeath    int
	ok        [4]uint64 // exit codes that become 0
	rewrite   [sigMax + 1]int8
	rewrote   uint64 // the signals that were named, but 64

	killRest    bool // stop what is left, for so long
	grace       int  // ms
	waitOrphans bool
	waitMost    int // ms, 0 without end
	stopGrace   int // ms between the stop signal and KILL, 0 never
	stopSignal  int // one more that means stop
	killCgroup  bool
	onStart     *byte
	onStop      *byte
	status      *byte

	serve         bool  // the service runs beside the command
	serveOptional bool  // and the command without it
	serveProgram  *byte // pinfold, if it is named
	serveBound    int   // ms until it must be ready
	cgroupRW      bool  // cgroup v2 may be made writable
}

// verdict is what the command line asks for.
type verdict uint8

const (
	verdictRun verdict = iota
	verdictMode
	verdictHelp
	verdictVersion
	verdictLicense
	verdictUsage    // nothing to run
	verdictUnknown  // option
	verdictArgument // of an option is missing or bad
)

// defaultGrace is what --kill-remaining alone means, in ms.
const defaultGrace = 5000

type takes uint8

const (
	nothing takes = iota
	argument
	maybe // --name or --name=argument
)

type flagID uint8

const (
	_ flagID = iota
	flHelp
	flVersion
	flLicense
	flVerbose
	flQuiet
	flGroup
	flSession
	flNoGroup
	flSubreaper
	flReaps
	flPdeath
	flOK
	flRewrite
	flPause
	flKillRest
	flWaitOrphans
	flStopGrace
	flStopSignal
	flKillCgroup
	flOnStart
	flOnStop
	flStatus
	flServe
	flServeOptional
	flServeBound
	flCgroupRW
)

// flag is an option, and who knows it.
type flag struct {
	short byte
	long  string
	id    flagID
	takes takes
	of    persona
}

// flags are all options. A short one must come before another of the same letter
// that is somebody else's only if both are of one persona, which none are.
var flags = [...]flag{
	{'h', "help", flHelp, nothing, asSelf | asDumb | asCatatonit},
	{'h', "", flHelp, nothing, asTini},
	{0, "version", flVersion, nothing, asSelf | asTini | asCatatonit},
	{'V', "version", flVersion, nothing, asSelf | asDumb},
	{'V', "", flVersion, nothing, asCatatonit},
	{'l', "license", flLicense, nothing, asSelf},
	{'l', "", flLicense, nothing, asTini},
	{'L', "", flLicense, nothing, asSelf | asCatatonit},
	{'v', "verbose", flVerbose, nothing, asSelf | asDumb},
	{'v', "", flVerbose, nothing, asTini},
	{'q', "quiet", flQuiet, nothing, asSelf},
	{'g', "group", flGroup, nothing, asSelf},
	{'g', "", flGroup, nothing, asTini | asCatatonit},
	{0, "session", flSession, nothing, asSelf},
	{'c', "single-child", flNoGroup, nothing, asSelf | asDumb},
	{'s', "subreaper", flSubreaper, nothing, asSelf},
	{'s', "", flSubreaper, nothing, asTini},
	{'w', "report-reaped", flReaps, nothing, asSelf},
	{'w', "", flReaps, nothing, asTini},
	{'p', "parent-death-signal", flPdeath, argument, asSelf},
	{'p', "", flPdeath, argument, asTini},
	{'e', "expect", flOK, argument, asSelf},
	{'e', "", flOK, argument, asTini},
	{'r', "rewrite", flRewrite, argument, asSelf | asDumb},
	{'P', "pause", flPause, nothing, asSelf},
	{'P', "", flPause, nothing, asCatatonit},
	{0, "kill-remaining", flKillRest, maybe, asSelf},
	{0, "wait-orphans", flWaitOrphans, maybe, asSelf},
	{0, "stop-timeout", flStopGrace, argument, asSelf},
	{0, "stop-signal", flStopSignal, argument, asSelf},
	{0, "kill-cgroup", flKillCgroup, nothing, asSelf},
	{0, "on-start", flOnStart, argument, asSelf},
	{0, "on-stop", flOnStop, argument, asSelf},
	{0, "status", flStatus, argument, asSelf},
	{0, "serve", flServe, maybe, asSelf},
	{0, "serve-optional", flServeOptional, nothing, asSelf},
	{0, "serve-timeout", flServeBound, argument, asSelf},
	{0, "cgroup-rw", flCgroupRW, nothing, asSelf},
}

// personaOf takes the last part of argv 0.
func personaOf(argv0 string) persona {
	base := argv0
	for i := 0; i < len(argv0); i++ {
		if argv0[i] == '/' {
			base = argv0[i+1:]
		}
	}
	switch base {
	case "tini", "tini-static", "docker-init":
		return asTini
	case "dumb-init":
		return asDumb
	case "catatonit":
		return asCatatonit
	}
	return asSelf
}

// modes are the words that are no commands of an init's.
func isMode(word string) bool {
	return word == "keeper" || word == "selftest" || word == "version" || word == "help"
}
