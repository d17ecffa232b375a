package turns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// wish is a launch that an ordinary user asks for, and what becomes of it.
type wish struct {
	name string
	req  api.LaunchRequest
	want string // ok, or the error's code and step
}

// wishes are those of a user, whom tell tells of in the two files.
func wishes(exe, plain, all string) []wish {
	tell := func(file string, more ...string) api.LaunchRequest {
		return api.LaunchRequest{Argv: append([]string{exe, file}, more...), EnvAdd: []string{helperEnv + "=tell"}, Cwd: "/"}
	}
	nice, adj, niceUp, adjDown := 7, 300, -5, -500
	full := tell(all, "\xff\xfe", "ü")
	full.EnvAdd = append(full.EnvAdd, "ADDED=yes")
	full.Cwd, full.CwdPolicy = "/tmp/no/such/place", api.CwdNearest
	full.Umask, full.Nice, full.OOMScoreAdj, full.NoNewPrivs = "077", &nice, &adj, true
	full.Rlimits = map[string]api.Rlimit{"nofile": {Soft: 100, Hard: 200}, "core": {Soft: 0, Hard: 0}}
	full.PassFDs = []api.PassFD{{FD: 0, Number: 9}, {FD: 1, Number: 5}}
	with := func(set func(*api.LaunchRequest)) api.LaunchRequest {
		req := api.LaunchRequest{Argv: []string{"true"}, Cwd: "/"}
		set(&req)
		return req
	}
	return []wish{
		{"plain", tell(plain), yes},
		{"all", full, yes},
		{"root", with(func(r *api.LaunchRequest) { r.User = "root" }), forbidden},
		{"root's group", with(func(r *api.LaunchRequest) { r.Group = "root" }), forbidden},
		{"more groups", with(func(r *api.LaunchRequest) { r.Groups = []string{"root"} }), forbidden},
		{"less nice", with(func(r *api.LaunchRequest) { r.Nice = &niceUp }), forbidden},
		{"spared by the OOM killer", with(func(r *api.LaunchRequest) { r.OOMScoreAdj = &adjDown }), forbidden},
		{"higher limits", with(func(r *api.LaunchRequest) {
			r.Rlimits = map[string]api.Rlimit{"nofile": {Soft: 1 << 30, Hard: 1 << 30}}
		}), forbidden},
		{"closed directory", with(func(r *api.LaunchRequest) { r.Cwd = "/root" }), "launch_refused cwd"},
		{"closed program", with(func(r *api.LaunchRequest) { r.Argv = []string{"/etc/shadow"} }), "exec_failed exec"},
	}
}

// playWishes: SOCKET ANSWERS EXE PLAIN ALL. It asks for each in a turn of its
// own making, waits for its end, and writes down what became of each.
func playWishes(words []string) int {
	c := &client.Client{Socket: words[0]}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	x := must(c.Begin(ctx, api.BeginRequest{}))
	r, w, err := os.Pipe()
	check(err)
	answers := map[string]string{"turn": x.ID}
	for _, wish := range wishes(words[2], words[3], words[4]) {
		var fds []*os.File
		if len(wish.req.PassFDs) > 0 {
			fds = []*os.File{r, w}
		}
		p, err := c.Launch(ctx, x.ID, wish.req, fds...)
		if err == nil {
			p, err = c.WaitProcess(ctx, x.ID, p.ID)
		}
		var e *api.Error
		switch {
		case errors.As(err, &e):
			answers[wish.name] = strings.TrimSpace(string(e.Code) + " " + e.Details["step"])
		case err != nil:
			answers[wish.name] = err.Error()
		case p.Status.State != api.ProcessExited || p.Status.Code != 0:
			answers[wish.name] = string(p.Status.State)
		default:
			answers[wish.name] = yes
		}
	}
	check(os.WriteFile(words[1]+".new", must(json.Marshal(answers)), 0o666))
	check(os.Rename(words[1]+".new", words[1]))
	return 0
}

// An ordinary user of root's service has each launch option, too, as far as the
// kernel or a rule does not keep it for root; then nothing runs.
func TestLaunchOptionsOfAUser(t *testing.T) {
	const nobody, group = 65534, 54323
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		f := files(t, "answers", "plain", "all")
		useHelper("tell")
		h := helper(t, "wishes", append([]string{s.dir + "/sock", f[0], run.exe}, f[1:]...)...)
		cmd := exec.Command(run.exe, h.Argv[1:]...)
		cmd.Env, cmd.Dir = h.Env, h.Cwd
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
			Credential: &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{group}}}
		if out, err := run.kids.output(cmd); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		answers := map[string]string{}
		if b, err := os.ReadFile(f[0]); err != nil || json.Unmarshal(b, &answers) != nil {
			t.Fatalf("%q %v", b, err)
		}
		for _, w := range wishes("", "", "") {
			got := answers[w.name]
			if w.want == forbidden { // whatever step tells it
				got, _, _ = strings.Cut(got, " ")
			}
			if got != w.want {
				t.Errorf("%s: %q, want %q", w.name, got, w.want)
			}
		}
		checkPlain(t, told(t, f[1]), nobody, group)
		checkFull(t, told(t, f[2]), nobody, group)
		if v, err := s.Turn(t.Context(), answers["turn"]); err != nil || v.Grade != g || len(v.Processes) != 2 {
			t.Errorf("the turn: %+v (%v)", v, err)
		}
	})
}

func checkPlain(t *testing.T, got seen, uid, group int) {
	t.Helper()
	if got.UID != uid || got.GID != uid || !slices.Equal(got.Groups, []int{group}) || got.Umask != 0o022 || !got.Session || got.NoNewPrivs != "0" ||
		got.Nice != 0 || strings.Trim(got.SigIgn, "0") != "" || strings.Trim(got.SigBlk, "0") != "" {
		t.Errorf("plain: %+v", got)
	}
	if want := []string{"0 /dev/null", "1 /dev/null", "2 /dev/null"}; !slices.Equal(got.FDs, want) {
		t.Errorf("descriptors: %q", got.FDs)
	}
	for _, want := range []string{"HOME=/nonexistent", "USER=nobody", "LOGNAME=nobody"} {
		if !has(got.Env, want) {
			t.Errorf("no %s in %q", want, got.Env)
		}
	}
}

func checkFull(t *testing.T, got seen, uid, group int) {
	t.Helper()
	if string(got.Argv[2]) != "\xff\xfe" || string(got.Argv[3]) != "ü" || !has(got.Env, "ADDED=yes") {
		t.Errorf("words and environment: %q %q", got.Argv, got.Env)
	}
	if got.Cwd != "/tmp" || got.UID != uid || !slices.Equal(got.Groups, []int{group}) || got.Umask != 0o077 || got.Nice != 7 ||
		got.OOMScoreAdj != "300" || got.NoNewPrivs != "1" || got.Files[1] != 200 || got.Core != [2]uint64{} {
		t.Errorf("%+v", got)
	}
	if len(got.FDs) != 5 || !strings.HasPrefix(got.FDs[3], "5 pipe:") || !strings.HasPrefix(got.FDs[4], "9 pipe:") {
		t.Errorf("descriptors: %q", got.FDs)
	}
}

func has(env [][]byte, word string) bool {
	return slices.ContainsFunc(env, func(b []byte) bool { return bytes.Equal(b, []byte(word)) })
}
