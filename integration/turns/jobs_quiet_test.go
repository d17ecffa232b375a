package turns

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// playUser: HOW PATH FILE [MOUNTPOINT]. It uses a path in some way, and beats.
func playUser(words []string) int {
	how, path := words[0], words[1]
	j := pulse(words[2])
	switch how {
	case "cwd":
		check(os.Chdir(path))
	case "root":
		check(syscall.Chroot(path))
		check(os.Chdir("/"))
	case "open":
		_ = must(os.Open(path))
	case "map":
		f := must(os.Open(path))
		_ = must(syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_PRIVATE))
		check(f.Close())
	case "exe": // a copy of this program, there
		b := must(os.ReadFile(must(os.Executable())))
		check(os.WriteFile(path, b, 0o755))
		check(syscall.Exec(path, []string{path, words[2]}, []string{helperEnv + "=beat"}))
	case "elsewhere", "detached": // mounted at another place, which only this process sees; or at none any more
		if len(words) == 4 {
			selfAs("user", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}, append(words, "inside")...)
			for { // it does not beat: only its child is there
				time.Sleep(time.Hour)
			}
		}
		check(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		check(syscall.Mount(path, words[3], "", syscall.MS_BIND, ""))
		check(os.Chdir(words[3]))
		if how == "detached" {
			check(syscall.Unmount(words[3], syscall.MNT_DETACH))
		}
	}
	return j.forever()
}

// A directory is in use as long as a process of a turn, or of a job, has its cwd,
// its root, its program, an open or a mapped file there; also one that sees it at
// another place. When all have gone it is quiet. A directory beside it is quiet
// all the time.
func TestQuiet(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		defer s.stopJobs()
		outside := newCanary(t, s)
		for _, how := range []string{"cwd", "root", "open", "map", "exe", "elsewhere", "detached"} {
			t.Run(how, func(t *testing.T) { quietBut(t, s, how) })
		}
		outside.lives()
	})
}

func quietBut(t *testing.T, s *service, how string) {
	f := files(t, "ws", "ws beside", "mnt", "turn", "job")
	for _, d := range f[:3] {
		if err := os.MkdirAll(d+"/deep/er", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(d+"/deep/file", make([]byte, 8192), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := map[string]string{"cwd": "/deep/er", "root": "/deep", "open": "/deep/file", "map": "/deep/file", "exe": "/deep/program", "elsewhere": "/deep", "detached": "/deep"}[how]
	hidden := how == "elsewhere" || how == "detached"
	req := func(ws, file string) api.LaunchRequest { return helper(t, "user", how, ws+path, file, f[2]) }
	quiet := func(dir string) api.Quiet {
		t.Helper()
		q, err := s.Quiet(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	used := func(by string, dir string, is func(api.Use) bool) {
		t.Helper()
		q := quiet(dir)
		if q.Quiet {
			t.Errorf("%s of %s: %s is quiet, falsely", how, by, dir)
		}
		if !slices.ContainsFunc(q.Uses, is) && len(q.Unseen) == 0 {
			t.Errorf("%s of %s: %+v", how, by, q)
		}
		if !hidden && len(q.Unseen) > 0 {
			t.Errorf("%s of %s: unseen %q", how, by, q.Unseen)
		}
	}
	if q := quiet(f[0]); !q.Quiet {
		t.Fatalf("before: %+v", q)
	}
	x := s.begin(t, api.BeginRequest{})
	p := x.launch(req(f[0], f[3]))
	heart(f[3]).beating(t)
	ofTurn := func(u api.Use) bool {
		return u.Turn == x.ID && u.Process == p.ID && u.Job == "" && (u.How == how || hidden && u.How == "cwd")
	}
	if hidden || how == "exe" { // it is on its way there
		eventually(t, "its use", func() bool { return !quiet(f[0]).Quiet })
	}
	for _, dir := range []string{f[0], f[0] + "/", f[0] + "/deep", filepath.Dir(f[0])} {
		used("a turn", dir, ofTurn)
	}
	if q := quiet(f[1]); len(q.Uses) > 0 || !q.Quiet && how != "detached" { // what is not seen may be anywhere
		t.Errorf("beside: %+v", q)
	}
	j, err := s.Promote(t.Context(), x.ID, p.ID, api.PromoteRequest{})
	if err != nil {
		t.Fatal(err)
	}
	used("a job", f[0], func(u api.Use) bool { return u.Job == j.ID })
	x.abandonKeeping(t)
	used("a job whose turn is over", f[0], func(u api.Use) bool { return u.Job == j.ID })
	if _, err := s.StopJob(t.Context(), j.ID, api.StopJobRequest{}); err != nil {
		t.Error(err)
	}
	own, err := s.StartJob(t.Context(), api.JobRequest{Launch: req(f[0], f[4])})
	if err != nil {
		t.Fatal(err)
	}
	heart(f[4]).beating(t)
	eventually(t, "the use by a started job", func() bool { return !quiet(f[0]).Quiet })
	used("a started job", f[0], func(u api.Use) bool { return u.Job == own.ID })
	if l, err := s.Jobs(t.Context(), client.JobQuery{Cwd: "/"}); err != nil || len(l.Jobs) != 1 {
		t.Errorf("%+v (%v)", l, err)
	}
	if _, err := s.StopJob(t.Context(), own.ID, api.StopJobRequest{}); err != nil {
		t.Error(err)
	}
	eventually(t, "quiet at the end", func() bool { q := quiet(f[0]); return q.Quiet && len(q.Unseen) == 0 })
}

// What is no directory, or not absolute, is not quiet but refused or unseen.
func TestQuietOfNothing(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x, _ := newNeighbour(t, s)
	for _, path := range []string{"", "relative", ".", "..", "*"} {
		if q, err := s.Quiet(t.Context(), path); err == nil {
			t.Errorf("%q: %+v", path, q)
		}
	}
	if q, err := s.Quiet(t.Context(), "/"); err != nil || q.Quiet || !slices.ContainsFunc(q.Uses, func(u api.Use) bool { return u.Turn == x.ID }) {
		t.Errorf("/: %+v (%v)", q, err)
	}
	link := files(t, "link")[0]
	if err := os.Symlink(run.dir, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, run.dir + "/../" + filepath.Base(run.dir)} {
		if q, err := s.Quiet(t.Context(), path); err != nil || q.Quiet { // the neighbour's program is there
			t.Errorf("%s: %+v (%v)", path, q, err)
		}
	}
	gone := strings.TrimSuffix(link, "link") + "gone"
	if q, err := s.Quiet(t.Context(), gone); err == nil && len(q.Uses) > 0 {
		t.Errorf("%s: %+v", gone, q)
	}
}
