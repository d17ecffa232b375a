package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"pinfold.dev/api"
	"pinfold.dev/internal/store"
	"pinfold.dev/systemd"
)

// serveOptions is all that the service is told. Every path is absolute.
type serveOptions struct {
	Socket       string
	RuntimeDir   string // live records; gone after a reboot
	StateDir     string // receipts and history
	Grade        api.Grade
	AllowPIDNS   bool
	CgroupParent string // empty: chosen by the service
	Init         string // the pinfold-init binary
	Grace        time.Duration
	Bound        time.Duration // how long a kill may take
	Retention    time.Duration // of output that nobody acknowledged
	OutputRoom   int64         // what all kept output may take
	History      store.Keep
	AdminGroup   string // empty: none
	Version      string
	Log          *slog.Logger
	log          *behind   // what Log writes to
	Say          io.Writer // for the line that says it is ready
	notifier     *systemd.Notifier
	handed       handed
	watchdog     time.Duration // how often systemd is to hear that the service is well; 0: never
}

// serveFlags are the same as they were written: on the command line, in the
// environment, or nowhere.
type serveFlags struct {
	runtimeDir, stateDir, grade, cgroupParent, init string
	grace, bound, adminGroup, logFormat, logLevel   string
	outputRetention, outputRoom                     string
	historyAge, historySize                         string
	historyCount, allowPIDNS                        string
}

func (f *serveFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&f.runtimeDir, "runtime-dir", "", "live records and turn directories (default /run/pinfold, or $XDG_RUNTIME_DIR/pinfold)")
	fs.StringVar(&f.stateDir, "state-dir", "", "receipts and history (default /var/lib/pinfold, or ~/.local/state/pinfold)")
	fs.StringVar(&f.grade, "grade", "auto", "how to hold turns: auto, scope, cgroup, pidns, subreaper or token")
	fs.StringVar(&f.allowPIDNS, "allow-pidns", "no", "yes lets turns have a PID namespace of their own, which shows in them, where there is no cgroup: yes or no")
	fs.Lookup("allow-pidns").NoOptDefVal = "yes"
	fs.StringVar(&f.cgroupParent, "cgroup-parent", "", "directory of a cgroup v2 tree below which turns are made (default: chosen)")
	fs.StringVar(&f.init, "init", "", "the pinfold-init program (default: beside pinfold, then libexec, then PATH)")
	fs.StringVar(&f.grace, "grace", "5s", "time between TERM and KILL where a turn names none; 0 kills at once")
	fs.StringVar(&f.bound, "bound", "10s", "how long a kill may take before the turn is called unkillable")
	fs.StringVar(&f.outputRetention, "output-retention", "1h", "how long kept output of a turn that is over stays, unless it is acknowledged")
	fs.StringVar(&f.outputRoom, "output-room", "4G", "disk space for all kept output; the oldest of what has ended goes first")
	fs.StringVar(&f.historyAge, "history-age", "720h", "how long turns that are over stay in the history")
	fs.StringVar(&f.historyCount, "history-count", "10000", "how many of them; the oldest go first")
	fs.StringVar(&f.historySize, "history-size", "256M", "what their records may take on disk")
	fs.StringVar(&f.adminGroup, "admin-group", "", "members of this group may see and end every turn, like root")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json, to stderr")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
}

// overlay fills in each flag that was not given from its PINFOLD_ variable.
// It returns where each value comes from, to name it when it is bad.
func overlay(fs *pflag.FlagSet, getenv func(string) string) map[string]string {
	source := map[string]string{}
	fs.VisitAll(func(f *pflag.Flag) {
		source[f.Name] = "--" + f.Name
		name := "PINFOLD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v := getenv(name); v != "" && !f.Changed {
			source[f.Name] = name
			// All of serve's own flags are strings, which take anything.
			_ = f.Value.Set(v)
		}
	})
	return source
}

// options checks the values. socket is --socket, which may be empty.
func (f *serveFlags) options(source map[string]string, socket string, dirs defaultDirs, logTo io.Writer) (serveOptions, error) {
	o := serveOptions{
		Socket: socket, RuntimeDir: f.runtimeDir, StateDir: f.stateDir,
		CgroupParent: f.cgroupParent, AdminGroup: f.adminGroup, Version: version,
	}
	if o.RuntimeDir == "" {
		o.RuntimeDir = dirs.runtime
	}
	if o.StateDir == "" {
		o.StateDir = dirs.state
	}
	if o.RuntimeDir == "" || o.StateDir == "" {
		return o, fmt.Errorf("no place for records: neither XDG_RUNTIME_DIR nor HOME say where; give --runtime-dir and --state-dir")
	}
	if o.Socket == "" {
		o.Socket = filepath.Join(o.RuntimeDir, socketName)
	}
	var err error
	for _, p := range []*string{&o.Socket, &o.RuntimeDir, &o.StateDir} {
		if *p, err = filepath.Abs(*p); err != nil {
			return o, err
		}
	}
	if o.CgroupParent != "" && !filepath.IsAbs(o.CgroupParent) {
		return o, fmt.Errorf("%s: %q is not an absolute path", source["cgroup-parent"], o.CgroupParent)
	}
	if o.Grade, err = parseGrade(f.grade); err != nil {
		return o, fmt.Errorf("%s: %w", source["grade"], err)
	}
	if f.allowPIDNS != "yes" && f.allowPIDNS != "no" {
		return o, fmt.Errorf("%s: %q is neither yes nor no", source["allow-pidns"], f.allowPIDNS)
	}
	o.AllowPIDNS = f.allowPIDNS == "yes"
	if o.Grace, err = parseDuration(f.grace); err != nil {
		return o, fmt.Errorf("%s: %w", source["grace"], err)
	}
	if o.Bound, err = parseDuration(f.bound); err != nil || o.Bound == 0 {
		return o, fmt.Errorf("%s: %q is not a time above 0, such as 10s", source["bound"], f.bound)
	}
	if o.Retention, err = parseDuration(f.outputRetention); err != nil {
		return o, fmt.Errorf("%s: %w", source["output-retention"], err)
	}
	if o.OutputRoom, err = parseBytes(f.outputRoom); err != nil || o.OutputRoom == 0 {
		return o, fmt.Errorf("%s: %q is not a size above 0, such as 4G", source["output-room"], f.outputRoom)
	}
	if o.History, err = f.history(source); err != nil {
		return o, err
	}
	o.Log, o.log, err = newLog(logTo, f.logFormat, f.logLevel, source)
	return o, err
}

// history checks what bounds the history.
func (f *serveFlags) history(source map[string]string) (k store.Keep, err error) {
	if k.Age, err = parseDuration(f.historyAge); err != nil || k.Age == 0 {
		return k, fmt.Errorf("%s: %q is not a time above 0, such as 720h", source["history-age"], f.historyAge)
	}
	if k.Count, err = strconv.Atoi(f.historyCount); err != nil || k.Count < 1 {
		return k, fmt.Errorf("%s: %q is not a number above 0", source["history-count"], f.historyCount)
	}
	if k.Size, err = parseBytes(f.historySize); err != nil || k.Size == 0 {
		return k, fmt.Errorf("%s: %q is not a size above 0, such as 256M", source["history-size"], f.historySize)
	}
	return k, nil
}

// parseGrade takes a grade, or auto.
func parseGrade(s string) (api.Grade, error) {
	if g := api.Grade(s); g == api.GradeAuto || slices.Contains(api.Grades(), g) {
		return g, nil
	}
	return "", fmt.Errorf("%q is not a grade: use auto, scope, cgroup, pidns, subreaper or token", s)
}

func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a time such as 500ms, 5s or 0", s)
	}
	return d, nil
}

func newLogger(w io.Writer, format, level string, source map[string]string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("%s: %q is not a level: use debug, info, warn or error", source["log-level"], level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, fmt.Errorf("%s: %q is not a format: use text or json", source["log-format"], format)
}

// newLog is a logger that nobody waits for; see behind.
func newLog(w io.Writer, format, level string, source map[string]string) (*slog.Logger, *behind, error) {
	direct, err := newLogger(w, format, level, source)
	if err != nil {
		return nil, nil, err
	}
	b := newBehind(w, func(lost int64) {
		direct.Warn("lines of this log are lost: they were not taken in time", "lines", lost)
	})
	log, err := newLogger(b, format, level, source)
	return log, b, err
}

// findInit returns the path of pinfold-init. One that was named must be there;
// otherwise it is looked for beside this program, in libexec, then in PATH.
func findInit(named, source string) (string, error) {
	if named != "" {
		p, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("%s: %w", source, err)
		}
		return filepath.Abs(p)
	}
	var tried []string
	if self, err := os.Executable(); err == nil {
		dir := filepath.Dir(self)
		tried = append(tried, filepath.Join(dir, initName), filepath.Join(dir, "..", "libexec", "pinfold", initName))
	}
	tried = append(tried, filepath.Join("/usr/libexec/pinfold", initName))
	for _, p := range tried {
		if _, err := exec.LookPath(p); err == nil {
			return filepath.Clean(p), nil
		}
	}
	if p, err := exec.LookPath(initName); err == nil {
		return filepath.Abs(p)
	}
	return "", fmt.Errorf("%s not found (looked at %s, then in PATH): install it beside pinfold, or name it with --init",
		initName, strings.Join(tried, ", "))
}
