package turns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/client"
	"pinfold.dev/internal/sys"
)

// seen is what a process finds itself to be.
type seen struct {
	Argv, Env   [][]byte
	Cwd         string
	UID, GID    int
	Groups      []int
	Umask       int
	Nice        int
	OOMScoreAdj string
	NoNewPrivs  string
	Files, Core [2]uint64 // limits
	FDs         []string  // number, and what it is
	Session     bool      // it leads one of its own
	SigIgn      string
	SigBlk      string
	Cgroup      string
}

// playTell: FILE WORD... It writes down what it is.
func playTell(words []string) int {
	dir := must(os.Open("/proc/self/fd"))
	names := must(dir.Readdirnames(-1))
	var out seen
	for _, n := range names {
		if to, err := os.Readlink("/proc/self/fd/" + n); err == nil && n != strconv.Itoa(int(dir.Fd())) && !strings.HasPrefix(to, "anon_inode:") && !strings.HasPrefix(to, "/sys/fs/cgroup/") {
			out.FDs = append(out.FDs, n+" "+to)
		}
	}
	slices.Sort(out.FDs)
	for _, w := range os.Args {
		out.Argv = append(out.Argv, []byte(w))
	}
	for _, w := range os.Environ() {
		out.Env = append(out.Env, []byte(w))
	}
	out.Cwd = must(os.Getwd())
	out.UID, out.GID, out.Groups = os.Getuid(), os.Getgid(), must(os.Getgroups())
	out.Umask = syscall.Umask(0)
	out.Nice = must(sys.Nice())
	out.OOMScoreAdj = strings.TrimSpace(string(must(os.ReadFile("/proc/self/oom_score_adj"))))
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/limits")))) {
		f := strings.Fields(strings.ReplaceAll(line, "unlimited", "18446744073709551615"))
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok && len(strings.Fields(rest)) > 1 {
			out.Files = [2]uint64{must(strconv.ParseUint(f[3], 10, 64)), must(strconv.ParseUint(f[4], 10, 64))}
		}
		if strings.HasPrefix(line, "Max core file size") {
			out.Core = [2]uint64{must(strconv.ParseUint(f[4], 10, 64)), must(strconv.ParseUint(f[5], 10, 64))}
		}
	}
	for line := range strings.Lines(string(must(os.ReadFile("/proc/self/status")))) {
		name, v, _ := strings.Cut(line, ":")
		switch v = strings.TrimSpace(v); name {
		case "NoNewPrivs":
			out.NoNewPrivs = v
		case "SigIgn":
			out.SigIgn = v
		case "SigBlk":
			out.SigBlk = v
		}
	}
	sid, _, _ := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	out.Session = int(sid) == os.Getpid()
	check(os.WriteFile(words[0]+".new", must(json.Marshal(out)), 0o666))
	check(os.Rename(words[0]+".new", words[0]))
	return 0
}

// told reads what one wrote down.
func told(t *testing.T, file string) (out seen) {
	t.Helper()
	eventually(t, "what the process says of itself", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && json.Unmarshal(b, &out) == nil
	})
	return out
}

func TestLaunchOptionsAreSeenFromInside(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		f := files(t, "plain", "all")
		plain := helper(t, "tell", f[0])
		x.launch(plain)
		got := told(t, f[0])
		if got.UID != 0 || got.Umask != 0o022 || !got.Session || got.NoNewPrivs != "0" || strings.Trim(got.SigIgn, "0") != "" || strings.Trim(got.SigBlk, "0") != "" {
			t.Errorf("plain: %+v", got)
		}
		if want := []string{"0 /dev/null", "1 /dev/null", "2 /dev/null"}; !slices.Equal(got.FDs, want) {
			t.Errorf("descriptors: %q", got.FDs)
		}
		nice, adj := 7, 300
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		all := helper(t, "tell", f[1], "\xff\xfe", "ü")
		all.Env = append(all.Env, "BYTES=\xff")
		all.EnvAdd = []string{"ADDED=yes", "PATH"}
		all.Cwd, all.CwdPolicy = "/tmp/no/such/place", api.CwdNearest
		all.User, all.Group, all.Groups = "54321", "54322", []string{"54323"}
		all.Umask, all.Nice, all.OOMScoreAdj, all.NoNewPrivs = "077", &nice, &adj, true
		all.Rlimits = map[string]api.Rlimit{"nofile": {Soft: 100, Hard: 200}, "core": {Soft: 0, Hard: -1}}
		all.PassFDs = []api.PassFD{{FD: 0, Number: 9}, {FD: 1, Number: 5}}
		p, err := s.Launch(t.Context(), x.ID, all, r, w)
		if err != nil {
			t.Fatal(err)
		}
		if p.Cwd != "/tmp" || len(p.ArgvB64) != 4 || string(p.ArgvB64[2]) != "\xff\xfe" || p.UID != 54321 {
			t.Errorf("%+v", p)
		}
		got = told(t, f[1])
		if string(got.Argv[2]) != "\xff\xfe" || string(got.Argv[3]) != "ü" || !slices.ContainsFunc(got.Env, func(b []byte) bool { return string(b) == "BYTES=\xff" }) {
			t.Errorf("bytes: %q %q", got.Argv, got.Env)
		}
		has := func(prefix string) bool {
			return slices.ContainsFunc(got.Env, func(b []byte) bool { return bytes.HasPrefix(b, []byte(prefix)) })
		}
		if !has("ADDED=yes") || has("PATH=") {
			t.Errorf("environment: %q", got.Env)
		}
		if got.Cwd != "/tmp" || got.UID != 54321 || got.GID != 54322 || !slices.Equal(got.Groups, []int{54323}) || got.Umask != 0o077 ||
			got.Nice != 7 || got.OOMScoreAdj != "300" || got.NoNewPrivs != "1" || got.Files[1] != 200 || got.Core != [2]uint64{0, 1<<64 - 1} {
			t.Errorf("%+v", got)
		}
		if len(got.FDs) != 5 || !strings.HasPrefix(got.FDs[3], "5 pipe:") || !strings.HasPrefix(got.FDs[4], "9 pipe:") {
			t.Errorf("descriptors: %q", got.FDs)
		}
		x.abandon(0)
	})
}

func TestAttributesThatTheKernelRefuses(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	_, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"true"}, Rlimits: map[string]api.Rlimit{"nofile": {Soft: 5, Hard: 1 << 40}}})
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.CodeLaunchRefused || e.Details["step"] != "attribute" {
		t.Errorf("%+v", err)
	}
	x.abandon(0)
}

// keptOutput reads a kept stream as it is now.
func (x *turn) keptOutput(process string, q client.OutputQuery) string {
	x.t.Helper()
	o, err := x.s.Output(x.t.Context(), x.ID, process, q)
	if err != nil {
		x.t.Fatal(err)
	}
	defer o.Close()
	b, err := io.ReadAll(o)
	if err != nil {
		x.t.Fatal(err)
	}
	return string(b)
}

// ended waits for a process and its output.
func (x *turn) ended(process string) api.Process {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience(time.Minute))
	defer cancel()
	p, err := x.s.WaitProcess(ctx, x.ID, process)
	if err != nil {
		x.t.Fatal(err)
	}
	eventually(x.t, "the end of its output", func() bool {
		p, err = x.s.Process(ctx, x.ID, process)
		if err != nil {
			x.t.Fatal(err)
		}
		for _, o := range p.Output {
			if !o.EOF {
				return false
			}
		}
		return true
	})
	return p
}

func stdio(in, out, err api.StdioMode) api.Stdio {
	return api.Stdio{Stdin: api.Stream{Mode: in}, Stdout: api.Stream{Mode: out}, Stderr: api.Stream{Mode: err}}
}

func TestOutputIsKept(t *testing.T) {
	eachGrade(t, func(t *testing.T, g api.Grade) {
		s := serve(t, g, options{})
		x := s.begin(t, api.BeginRequest{})
		p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "echo out; echo err >&2"}, Stdio: stdio(api.StdioNull, api.StdioSpool, api.StdioSpool)})
		p = x.ended(p.ID)
		if o := p.Output[api.StreamStdout]; o.BytesTotal != 4 || o.MaxBytes != 16<<20 || p.Output[api.StreamStderr].BytesTotal != 4 {
			t.Errorf("%+v", p.Output)
		}
		if out, err := x.keptOutput(p.ID, client.OutputQuery{}), x.keptOutput(p.ID, client.OutputQuery{Stream: api.StreamStderr}); out != "out\n" || err != "err\n" {
			t.Errorf("%q %q", out, err)
		}
		p = x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "echo one; echo two >&2; echo three"}, Stdio: stdio("", api.StdioSpool, api.StdioStdout)})
		p = x.ended(p.ID)
		if out := x.keptOutput(p.ID, client.OutputQuery{}); out != "one\ntwo\nthree\n" || len(p.Output) != 1 {
			t.Errorf("merged: %q, %+v", out, p.Output)
		}
		x.abandon(0)
		if out := x.keptOutput(p.ID, client.OutputQuery{Tail: new(int64(6))}); out != "three\n" { // the turn is over, the output is there
			t.Errorf("after the end: %q", out)
		}
		if v, err := s.Acknowledge(t.Context(), x.ID, p.ID); err != nil || !v.Acknowledged {
			t.Errorf("%+v (%v)", v, err)
		}
		if _, err := s.Output(t.Context(), x.ID, p.ID, client.OutputQuery{}); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("after the acknowledgement: %v", err)
		}
	})
}

// What is too much is a gap between what came first and what came last.
func TestOutputIsBounded(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	req := api.LaunchRequest{Argv: []string{"seq", "100000"}, Stdio: stdio("", api.StdioSpool, "")}
	req.Stdio.Stdout.MaxBytes = 8192
	p := x.launch(req)
	p = x.ended(p.ID)
	total := p.Output[api.StreamStdout].BytesTotal
	if total != 588895 || p.Output[api.StreamStdout].BytesDropped != total-8192 {
		t.Errorf("%+v", p.Output)
	}
	l, err := s.OutputLines(t.Context(), x.ID, p.ID, client.OutputQuery{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var at, gone int64
	var text []byte
	for {
		line, err := l.Next()
		if err == io.EOF {
			break
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case line.Data != nil && *line.Offset != at:
			t.Fatalf("bytes at %d, after those up to %d", *line.Offset, at)
		case line.Data != nil:
			text, at = append(text, line.Data...), at+int64(len(line.Data))
		case line.Gap != nil:
			gone, at = gone+line.Gap.To-line.Gap.From, line.Gap.To
		case line.Next != nil && (*line.Next != total || !line.EOF || line.Exit == nil):
			t.Errorf("%+v", line)
		}
	}
	if len(text) != 8192 || gone != total-8192 || !bytes.HasPrefix(text, []byte("1\n2\n3\n")) || !bytes.HasSuffix(text, []byte("99999\n100000\n")) {
		t.Errorf("%d bytes, %d gone", len(text), gone)
	}
	x.abandon(0)
}

// Nothing is lost, and nobody stops, when the service is killed while a process
// writes and another sits at a terminal.
func TestStreamsOutliveTheService(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	f := files(t, "stop")
	req := api.LaunchRequest{Argv: []string{"sh", "-c", "i=0; while [ ! -e " + f[0] + " ]; do i=$((i+1)); echo line $i; done; echo last $i; exit 7"},
		Stdio: stdio("", api.StdioSpool, "")}
	req.Stdio.Stdout.MaxBytes = 1 << 28
	writer := x.launch(req)
	shell := x.launch(api.LaunchRequest{Argv: []string{"sh"}, Env: []string{"PS1=", "PATH=" + os.Getenv("PATH")},
		Stdio: stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)})
	x.types(shell.ID, "echo be''fore\n")
	eventually(t, "an answer", func() bool { return strings.Contains(x.keptOutput(shell.ID, client.OutputQuery{}), "before") })
	for range 3 {
		s.kill()
		time.Sleep(patience(50 * time.Millisecond))
		s.restart()
	}
	x.types(shell.ID, "echo af''ter; tty; exit 3\n")
	if p := x.ended(shell.ID); p.Status.Code != 3 || !p.Terminal || p.Stdin != api.StdioPTY {
		t.Errorf("%+v", p)
	}
	if text := x.keptOutput(shell.ID, client.OutputQuery{}); !strings.Contains(text, "after") || !strings.Contains(text, "/dev/pts/") {
		t.Errorf("%q", text)
	}
	if err := os.WriteFile(f[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := x.ended(writer.ID)
	if o := p.Output[api.StreamStdout]; p.Status.Code != 7 || o.BytesDropped != 0 {
		t.Fatalf("%+v", p)
	}
	n, text := 0, x.keptOutput(writer.ID, client.OutputQuery{})
	for line := range strings.Lines(text) {
		if n++; line != fmt.Sprintf("line %d\n", n) {
			if line != fmt.Sprintf("last %d\n", n-1) {
				t.Fatalf("line %d is %q", n, line)
			}
			break
		}
	}
	if int64(len(text)) != p.Output[api.StreamStdout].BytesTotal || n < 10 {
		t.Errorf("%d bytes, %d lines", len(text), n)
	}
	x.abandon(0)
}

// types writes to a process's stdin.
func (x *turn) types(process, text string) {
	x.t.Helper()
	if a, err := x.s.WriteStdin(x.t.Context(), x.ID, process, strings.NewReader(text), false); err != nil || a.Bytes != int64(len(text)) {
		x.t.Fatalf("%+v (%v)", a, err)
	}
}

func TestInput(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	for _, n := range []int{0, 10, 64 << 10, 1 << 20} {
		req := api.LaunchRequest{Argv: []string{"sh", "-c", "wc -c; wc -c </dev/stdin"}, User: "54321", Group: "54321", Stdio: stdio(api.StdioData, api.StdioSpool, api.StdioStdout)}
		req.Stdio.Stdin.Data = bytes.Repeat([]byte{'x'}, n)
		p := x.launch(req)
		x.ended(p.ID)
		if out := strings.Fields(x.keptOutput(p.ID, client.OutputQuery{})); len(out) < 1 || out[0] != strconv.Itoa(n) {
			t.Errorf("%d bytes: %q", n, out)
		}
	}
	big := strings.Repeat("0123456789abcde\n", 1<<19) // 8 MiB
	p := x.launch(api.LaunchRequest{Argv: []string{"md5sum"}, Stdio: stdio(api.StdioPipe, api.StdioSpool, "")})
	q := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "yes 0123456789abcde | head -n 524288 | md5sum"}, Stdio: stdio("", api.StdioSpool, "")})
	if a, err := s.WriteStdin(t.Context(), x.ID, p.ID, strings.NewReader(big), true); err != nil || a.Bytes != int64(len(big)) || !a.Closed {
		t.Errorf("%+v (%v)", a, err)
	}
	x.ended(p.ID)
	x.ended(q.ID)
	if a, b := x.keptOutput(p.ID, client.OutputQuery{}), x.keptOutput(q.ID, client.OutputQuery{}); a != b {
		t.Errorf("%q, want %q", a, b)
	}
	if _, err := s.WriteStdin(t.Context(), x.ID, p.ID, strings.NewReader("more"), false); !errors.Is(err, api.ErrStdinClosed) {
		t.Errorf("to one that has ended: %v", err)
	}
	p = x.launch(api.LaunchRequest{Argv: []string{"sleep", "3600"}, Stdio: stdio(api.StdioPipe, "", "")})
	ctx, cancel := context.WithTimeout(t.Context(), patience(3*time.Second))
	defer cancel()
	if _, err := s.WriteStdin(ctx, x.ID, p.ID, strings.NewReader(big), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("to one that does not read: %v", err)
	}
	if _, err := s.Signal(t.Context(), x.ID, p.ID, api.SignalRequest{Signal: "KILL"}); err != nil {
		t.Error(err)
	}
	x.ended(p.ID)
	x.abandon(0)
}

func TestTerminal(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	req := api.LaunchRequest{Argv: []string{"sh", "-c", "stty size; read x; stty size; read y; echo got $x $y"}, Stdio: stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)}
	req.Stdio.PTY = &api.WinSize{Rows: 33, Cols: 99}
	p := x.launch(req)
	says := func(text string) {
		t.Helper()
		eventually(t, text, func() bool { return strings.Contains(x.keptOutput(p.ID, client.OutputQuery{}), text) })
	}
	says("33 99")
	if a, err := s.Resize(t.Context(), x.ID, p.ID, api.ResizeRequest{Rows: 0, Cols: 100000}); err != nil || a.Rows != 1 || a.Cols != 4096 {
		t.Errorf("%+v (%v)", a, err)
	}
	x.types(p.ID, "a\n")
	says("1 4096")
	if a, err := s.WriteStdin(t.Context(), x.ID, p.ID, strings.NewReader("b\n"), true); err != nil || !a.Closed {
		t.Errorf("%+v (%v)", a, err)
	}
	says("got a b")
	if p := x.ended(p.ID); p.Status.Code != 0 {
		t.Errorf("%+v", p)
	}
	q := x.launch(api.LaunchRequest{Argv: []string{"cat"}, Stdio: stdio(api.StdioPTY, api.StdioPTY, "")})
	x.types(q.ID, "\x03") // the terminal's interrupt character
	if q := x.ended(q.ID); q.Status.Signal != "SIGINT" {
		t.Errorf("%+v", q.Status)
	}
	r := x.launch(api.LaunchRequest{Argv: []string{"true"}, Stdio: stdio("", api.StdioSpool, "")})
	if _, err := s.Resize(t.Context(), x.ID, r.ID, api.ResizeRequest{Rows: 1, Cols: 1}); !errors.Is(err, api.ErrBadRequest) {
		t.Errorf("without a terminal: %v", err)
	}
	x.abandon(0)
}

// An exit is told at once, whoever still holds what the process wrote to.
func TestExitIsNotHeldUp(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	x := s.begin(t, api.BeginRequest{})
	for name, req := range map[string]api.LaunchRequest{
		"spool":  {Stdio: stdio("", api.StdioSpool, api.StdioSpool)},
		"merged": {Stdio: stdio("", api.StdioSpool, api.StdioStdout)},
		"pty":    {Stdio: stdio(api.StdioPTY, api.StdioPTY, api.StdioPTY)},
		"pipe":   {Stdio: stdio(api.StdioPipe, api.StdioSpool, api.StdioStdout)},
	} {
		req.Argv = []string{"sh", "-c", "setsid sleep 3600 & sleep 3600 & echo said; exit 5"}
		p := x.launch(req)
		ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
		v, err := s.WaitProcess(ctx, x.ID, p.ID)
		cancel()
		if err != nil || v.Status.Code != 5 || v.Output[api.StreamStdout].EOF && name != "pty" {
			t.Errorf("%s: %+v (%v)", name, v, err)
		}
		drain := patience(100 * time.Millisecond)
		if out := x.keptOutput(p.ID, client.OutputQuery{Follow: true, Drain: &drain}); strings.TrimSpace(out) != "said" {
			t.Errorf("%s: %q", name, out)
		}
	}
	x.abandon(0)
}

func TestOutputsBoundEndsTheTurn(t *testing.T) {
	s := serve(t, grades(t)[0], options{})
	dropped := s.begin(t, api.BeginRequest{OutputMax: 100_000})
	p := dropped.launch(api.LaunchRequest{Argv: []string{"seq", "100000"}, Stdio: stdio("", api.StdioSpool, "")})
	p = dropped.ended(p.ID)
	if o := p.Output[api.StreamStdout]; p.Status.Code != 0 || o.BytesTotal != 588895 || o.BytesLost < 400_000 {
		t.Errorf("%+v", p)
	}
	if v := dropped.look(); !v.OutputMaxed || v.State != api.StateOpen {
		t.Errorf("%+v", v)
	}
	x := s.begin(t, api.BeginRequest{OutputMax: 100_000, OnOutputMax: api.OutputStop})
	x.launch(api.LaunchRequest{Argv: []string{"yes"}, Stdio: stdio("", api.StdioSpool, "")})
	ctx, cancel := context.WithTimeout(t.Context(), patience(time.Minute))
	defer cancel()
	if _, err := s.WaitTurn(ctx, x.ID); err != nil {
		t.Fatal(err)
	}
	r, err := s.Receipt(ctx, x.ID)
	if err != nil || r.Reason != api.ReasonLimit || !r.Complete {
		t.Errorf("%+v (%v)", r, err)
	}
	dropped.abandon(0)
}
