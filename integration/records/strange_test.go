package records

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
)

// strangers are what may be at the name of a file.
func strangers() map[string]func(path string) error {
	return map[string]func(path string) error{
		"fifo": func(p string) error { return syscall.Mkfifo(p, 0o600) },
		"socket": func(p string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		},
		"directory":     func(p string) error { return os.MkdirAll(p+"/in", 0o700) },
		"device":        func(p string) error { return syscall.Mknod(p, syscall.S_IFCHR|0o600, 1<<8|5) }, // /dev/zero has no end
		"link to fifo":  func(p string) error { return errors.Join(syscall.Mkfifo(p+".fifo", 0o600), os.Symlink(p+".fifo", p)) },
		"dangling link": func(p string) error { return os.Symlink(p+".nowhere", p) },
		"another's": func(p string) error {
			return errors.Join(os.WriteFile(p, []byte("{}"), 0o600), os.Chown(p, 65534, 65534))
		},
		"garbage": func(p string) error { return os.WriteFile(p, []byte("\x00\xff no sense \n\n{"), 0o600) },
		"empty":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
	}
}

// ownNames are the files and directories that the service opens, below its own; TURN
// stands for a turn's.
func ownNames() []string {
	return []string{
		"run/instance", "run/instance.new", "run/instance.json", "run/instance.json.new", "run/reserve", "run/room", "run/lock",
		"run/selftest-cgroup.json", "run/selftest-cgroup.json.new", "run/events.reserved", "run/events.reserved.new", "run/turns",
		"run/turns/TURN", "run/turns/TURN/record.json", "run/turns/TURN/record.json.new", "run/turns/TURN/journal.jsonl", "run/turns/TURN/keeper.sock",
		"run/turns/00000000000000aa", "sock", "sock.lock",
		"state/history.db", "state/history.db.compact", "state/events", "state/events/next", "state/events/acks", "state/events/acks/0.json",
		"state/events/acks/0.json.new", "state/events/SEGMENT", "state/spool", "state/spool/TURN",
	}
}

// Whatever is at the name of one of the service's files, it starts, or says why
// not and what to do, and is soon at either; the turn that was there is not
// touched, and a service that starts works.
func TestStrangeFiles(t *testing.T) {
	kinds := make([]string, 0, 9)
	for k := range strangers() {
		kinds = append(kinds, k)
	}
	slices.Sort(kinds)
	for i, name := range ownNames() {
		try := []string{"fifo"}
		if i%3 == 0 {
			try = []string{kinds[i/3%len(kinds)]}
		}
		if os.Getenv("PINFOLD_TEST_LONG") == "1" {
			try = kinds
		}
		for _, kind := range try {
			t.Run(strings.ReplaceAll(name, "/", " ")+" a "+kind, func(t *testing.T) {
				t.Parallel()
				strangeFile(t, name, kind)
			})
		}
	}
}

func strangeFile(t *testing.T, name, kind string) {
	s := serve(t)
	x := s.begin(api.BeginRequest{})
	p := s.launch(x.ID, "exec sleep 100000")
	s.kill()
	path := filepath.Join(s.dir, strings.ReplaceAll(name, "TURN", x.ID))
	if strings.HasSuffix(path, "SEGMENT") {
		all, err := filepath.Glob(filepath.Dir(path) + "/*.log")
		if err != nil || len(all) != 1 {
			t.Fatalf("%q %v", all, err)
		}
		path = all[0]
	}
	aside := path + ".aside"
	err := os.Rename(path, aside)
	if errors.Is(err, os.ErrNotExist) {
		aside, err = "", os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = strangers()[kind](path)
	}
	if err != nil {
		t.Fatal(err)
	}
	canary := newCanary(t, "")
	began := time.Now()
	err = s.tryStart()
	if took := time.Since(began); took > patience(45*time.Second) {
		t.Errorf("it took %s", took)
	}
	if err == nil {
		works(t, s)
		s.kill()
	} else if out := s.log(); !s.running() && !(strings.Contains(out, path) || strings.Contains(out, filepath.Dir(path))) {
		t.Errorf("it does not say where it is: %s", out)
	} else if s.running() {
		t.Fatalf("it neither starts nor ends: %v", err)
	}
	canary.lives()
	if lost := strings.HasPrefix(name, "run/turns") && !strings.Contains(name, ".") && !strings.HasSuffix(name, "aa") && kind == "directory"; lost {
		eventually(t, "what bears the mark and has no record is ended", func() bool { st := stateOf(p.PID); return st == 0 || st == 'Z' })
		s.start()
		return
	}
	if st := stateOf(p.PID); st == 0 || st == 'Z' {
		t.Error("what was in the turn is dead")
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	if aside != "" {
		if err := os.Rename(aside, path); err != nil {
			t.Fatal(err)
		}
	}
	s.start()
	if v := s.look(x.ID); v.State != api.StateOpen || v.Alive != 1 {
		t.Errorf("put back, the turn is %s, alive %d", v.State, v.Alive)
	}
}

// works has the service begin, launch and end.
func works(t *testing.T, s *service) {
	t.Helper()
	v, err := s.Begin(context.Background(), api.BeginRequest{})
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	s.exits(v.ID, "exit 0")
	r, err := s.Abandon(context.Background(), v.ID, api.AbandonRequest{GraceMS: new(int64(0))})
	if err != nil || !r.Complete {
		t.Errorf("abandon: complete %v (%v)", r.Complete, err)
	}
	eventually(t, "its cgroup is gone", func() bool { _, err := os.Stat(v.Cgroup); return err != nil })
}
