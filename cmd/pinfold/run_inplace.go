package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// inPlace moves this process into the turn and executes the command as it. It
// returns only when that failed.
func (r *runner) inPlace(ctx context.Context) error {
	if err := r.enterCwd(); err != nil {
		return err
	}
	path, err := lookPath(r.launch.Argv[0], r.launch.Env)
	if err != nil {
		return err // before anything was moved
	}
	sigs := catchSignals()
	early, cancel := sigs.cancelOnStop(ctx)
	err = r.join(early)
	cancel()
	sigs.stop()
	sigs.drain()
	s := sigs.early()
	if (err != nil || s != nil) && r.own {
		r.letGo(ctx)
	}
	if s != nil {
		return status(128 + s.number())
	}
	if err != nil {
		return &exitError{exitService, err}
	}
	r.client.Close()
	if slices.Contains(sigs.kept, caught(syscall.SIGTSTP)) {
		_ = sys.StopSelf() // the command's signal came before the command
	}
	return execute(path, r.launch)
}

// enterCwd goes where the command is to run, and sets its umask.
func (r *runner) enterCwd() error {
	if mask, err := strconv.ParseUint(r.launch.Umask, 8, 12); err == nil {
		syscall.Umask(int(mask))
	} else if r.launch.Umask != "" {
		return &exitError{exitService, fmt.Errorf("--umask: %q is not octal", r.launch.Umask)}
	}
	if r.stays {
		return nil
	}
	dir := r.launch.Cwd
	for {
		err := os.Chdir(dir)
		if err == nil {
			r.launch.Cwd = dir
			return nil
		}
		if r.launch.CwdPolicy != api.CwdNearest || !errors.Is(err, os.ErrNotExist) || dir == "/" || !filepath.IsAbs(dir) {
			return &exitError{exitService, api.Errorf(api.CodeLaunchRefused, "change to directory %s: %v", dir, cause(err)).
				WithRemedy("make the directory, or name another with --cwd")}
		}
		dir = filepath.Dir(dir)
	}
}

// join begins the turn, if it is ours to begin, moves us into it, and believes
// that only when the kernel says so.
func (r *runner) join(ctx context.Context) error {
	if r.turn == "" {
		t, err := r.client.Begin(ctx, r.begin)
		if err != nil {
			return err
		}
		r.turn, r.own = t.ID, true
	}
	l := r.launch
	p, err := r.client.Join(ctx, r.turn, api.JoinRequest{Argv: carriedWords(l.Argv), Cwd: carried(l.Cwd), Labels: l.Labels,
		StopSignal: l.StopSignal, MinGrade: l.MinGrade, Epoch: l.Epoch, FinishTurn: r.own})
	if err == nil {
		err = verifyJoined(p)
	}
	return err
}

// letGo finishes our turn after a failure. We may be in it, for all that we know:
// nothing in it is ended.
func (r *runner) letGo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := insistFor(ctx, brief, func(ctx context.Context) error {
		_, err := r.client.Finish(ctx, r.turn, api.FinishRequest{Leftovers: api.LeftoversKeep})
		return err
	})
	if err != nil {
		fmt.Fprintf(r.stderr, "pinfold: the turn %s is still open: %s\n", r.turn, clean(err.Error()))
	}
}

// verifyJoined holds the kernel's word against the service's.
func verifyJoined(p api.Process) error {
	h, err := pidfd.Open(os.Getpid())
	if err != nil {
		return fmt.Errorf("look where this process is: %w", err)
	}
	defer h.Close()
	id, err := h.CgroupID()
	switch {
	case err != nil:
		return fmt.Errorf("look where this process is: %w", err)
	case p.PID != os.Getpid() && p.Identity.Ino == 0:
		return fmt.Errorf("the service moved process %d, this is %d", p.PID, os.Getpid())
	case id != p.Identity.CgroupID:
		return fmt.Errorf("this process is in cgroup %d, not in %d as the service says", id, p.Identity.CgroupID)
	}
	return nil
}

// carriedWords is argv as JSON can carry it: it is only shown.
func carriedWords(argv []string) []string {
	words := make([]string, len(argv))
	for i, w := range argv {
		words[i] = carried(w)
	}
	return words
}

func carried(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// lookPath finds the command as a shell does, in the PATH that it will have.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil // execve says what is wrong with it
	}
	path := "/usr/local/bin:/usr/bin:/bin"
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	found := ""
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		file := dir + "/" + name
		fi, err := os.Stat(file)
		if err != nil || fi.IsDir() {
			continue
		}
		if fi.Mode()&0o111 != 0 {
			return file, nil
		}
		found = file
	}
	if found != "" {
		return "", &exitError{exitNotExec, notExecuted(found, "permission denied")}
	}
	return "", &exitError{exitNoExec, notExecuted(name, "not found in "+path)}
}

// execute becomes the command. Descriptors of ours are close-on-exec, handlers
// are undone by the kernel, and Go gives back the limit of files that it raised.
func execute(path string, l api.LaunchRequest) error {
	if signal.Ignored(syscall.SIGINT) {
		signal.Ignore(syscall.SIGQUIT) // as a shell's background has it; see ignoredAtStart
	}
	err := syscall.Exec(path, l.Argv, l.Env)
	for i := 0; i < 50 && errors.Is(err, syscall.ETXTBSY); i++ { // somebody forked while it was being written
		time.Sleep(10 * time.Millisecond)
		err = syscall.Exec(path, l.Argv, l.Env)
	}
	code := exitNotExec
	if errors.Is(err, syscall.ENOENT) {
		code = exitNoExec
	}
	return &exitError{code, notExecuted(path, err.Error())}
}

func notExecuted(path, why string) error {
	return api.Errorf(api.CodeExecFailed, "execute %s: %s", path, why).
		WithRemedy("name a program that is there and may be executed; a script's #! interpreter may be missing, too")
}

// cause is an error without the path that it was about.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
