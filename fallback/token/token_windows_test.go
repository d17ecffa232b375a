package token

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"pinfold.dev/api"
	"pinfold.dev/pidfd"
)

// helperEnv makes the test binary a helper: it says that it is there, and ends
// when its standard input does.
const helperEnv = "PINFOLD_TEST_HELPER"

// tableEnv names a file for the table of docs/platforms.md, see
// integration/wine.
const tableEnv = "PINFOLD_TEST_TABLE"

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		fmt.Println("here")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// helper is a running child.
type helper struct {
	*exec.Cmd
	stdin io.Closer
}

// start starts a helper that the system protects as sddl says; empty: as usual.
func start(t *testing.T, sddl string) *helper {
	t.Helper()
	h := &helper{Cmd: exec.Command(os.Args[0])}
	h.Env = append(os.Environ(), helperEnv+"=1")
	if sddl != "" {
		h.SysProcAttr = &syscall.SysProcAttr{ProcessAttributes: protection(t, sddl)}
	}
	in, err := h.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	h.stdin = in
	t.Cleanup(func() { h.end(t) })
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "here" {
		t.Fatalf("helper said %q, %v", line, err)
	}
	return h
}

// end lets it end, and lets go of its handle: its number is free.
func (h *helper) end(t *testing.T) {
	if h.ProcessState != nil {
		return
	}
	_ = h.stdin.Close()
	var exit *exec.ExitError
	if err := h.Wait(); !errors.As(err, &exit) {
		t.Errorf("helper: %v", err)
	}
}

// protection is a security descriptor, in the words of SDDL.
func protection(t *testing.T, sddl string) *syscall.SecurityAttributes {
	t.Helper()
	text, err := syscall.UTF16PtrFromString(sddl)
	if err != nil {
		t.Fatal(err)
	}
	var sa syscall.SecurityAttributes
	sa.Length = uint32(unsafe.Sizeof(sa))
	call := syscall.NewLazyDLL("advapi32.dll").NewProc("ConvertStringSecurityDescriptorToSecurityDescriptorW")
	const revision = 1
	if ok, _, err := call.Call(uintptr(unsafe.Pointer(text)), revision, uintptr(unsafe.Pointer(&sa.SecurityDescriptor)), 0); ok == 0 {
		t.Fatal(err)
	}
	return &sa
}

// who may do what with a helper: the rights are those of OpenProcess.
const (
	nobody    = "D:"                   // an empty list: nobody may do anything
	mayNotEnd = "D:(A;;0x101000;;;WD)" // everybody: PROCESS_QUERY_LIMITED_INFORMATION, SYNCHRONIZE
)

func hold(t *testing.T, pid int) *Process {
	t.Helper()
	p, err := Hold(pid)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// row is one line of the table.
type row struct {
	what    string
	verdict api.Verdict
	why     []string
}

// recall recalls a record without keeping hold of it.
func recall(what string, rec api.Identity) row {
	p, v, why := Recall(rec)
	if p != nil {
		_ = p.Close()
	}
	return row{what, v, why}
}

// TestVerdicts is the verdict table of Windows, with real processes.
func TestVerdicts(t *testing.T) {
	canary := start(t, "")
	live := start(t, "")
	p := hold(t, live.Process.Pid)
	rec := p.Identity()
	other := rec
	other.Created++
	odd := rec
	odd.PID++
	table := []row{
		recall("a child that runs", rec),
		recall("the same number, a creation time 100 ns off", other),
		recall("a number that is no multiple of four", odd),
		recall("a record without a creation time", api.Identity{PID: rec.PID}),
		recall("a record of another system", api.Identity{PID: rec.PID, Boot: "b", StartTicks: 1}),
	}
	live.end(t)
	v, why := p.Verify()
	table = append(table, row{"a child that has exited, by a handle that was opened before", v, why})
	table = append(table, recall("the same, opened anew", rec))
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	table = append(table, recallFree("the same, once nobody has a handle of it", rec))
	table = append(table, reused(t))

	table = append(table, recall("a process that may not be opened (ERROR_ACCESS_DENIED)", recordOf(t, nobody)))
	table = append(table, recall("one that may not be ended, and runs", recordOf(t, mayNotEnd)))

	want := []api.Verdict{
		api.VerdictOwned, api.VerdictForeign, api.VerdictGone, api.VerdictUnverifiable, api.VerdictUnverifiable,
		api.VerdictGone, api.VerdictGone, api.VerdictGone, api.VerdictForeign,
		api.VerdictUnverifiable, api.VerdictOwned,
	}
	var text strings.Builder
	number := regexp.MustCompile(`\d{2,}`)
	text.WriteString("| a record, and who has its number | verdict | evidence |\n| --- | --- | --- |\n")
	for i, r := range table {
		why := number.ReplaceAllString(strings.Join(r.why, "; "), "N")
		if r.verdict != want[i] {
			t.Errorf("%s: %s, want %s; %s", r.what, r.verdict, want[i], why)
		}
		fmt.Fprintf(&text, "| %s | `%s` | %s |\n", r.what, r.verdict, why)
	}
	t.Log("\n" + text.String())
	if name := os.Getenv(tableEnv); name != "" {
		if err := os.WriteFile(name, []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
	}
	lives(t, canary)
}

// recallFree recalls a record until the system has forgotten the process: it has
// handles of its own for a moment.
func recallFree(what string, rec api.Identity) row {
	r := recall(what, rec)
	for n := 0; n < 1000 && !slices.Contains(r.why, "no process has its number"); n++ {
		time.Sleep(10 * time.Millisecond)
		r = recall(what, rec)
	}
	return r
}

// recordOf starts a protected helper, and records what its parent knows of it
// by the handle that it was given when it made it.
func recordOf(t *testing.T, sddl string) api.Identity {
	t.Helper()
	h := start(t, sddl)
	rec := api.Identity{PID: h.Process.Pid}
	err := h.Process.WithHandle(func(handle uintptr) {
		var created, exited, kernel, user syscall.Filetime
		if err := syscall.GetProcessTimes(syscall.Handle(handle), &created, &exited, &kernel, &user); err != nil {
			t.Fatal(err)
		}
		rec.Created = uint64(created.HighDateTime)<<32 | uint64(created.LowDateTime)
	})
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// reused makes the system give a number away again, to a stranger. The number
// of a process that has exited, and of which a handle is open, goes to nobody
// meanwhile.
func reused(t *testing.T) row {
	t.Helper()
	h := start(t, "")
	pinned := hold(t, h.Process.Pid)
	defer pinned.Close()
	h.end(t)
	threads(300) // they use up numbers as well, and Wine keeps 256 free ones back
	dead := map[int]api.Identity{}
	for n := range 1000 {
		h := start(t, "")
		pid := h.Process.Pid
		if pid == pinned.Identity().PID {
			t.Fatal("a number was given away while a handle was open")
		}
		if rec, ok := dead[pid]; ok && n >= 30 {
			t.Logf("number %d came back, after %d processes", pid, n)
			if v, why := pinned.Verify(); v != api.VerdictGone {
				t.Errorf("the process that has exited: %s, %q", v, why)
			}
			defer lives(t, h)
			return recall("a number that was given to another process", rec)
		}
		p := hold(t, pid)
		dead[pid] = p.Identity()
		_ = p.Close()
		h.end(t)
	}
	t.Fatal("no number came back")
	return row{}
}

// threads starts n threads, and ends them.
func threads(n int) {
	var all sync.WaitGroup
	for range n {
		all.Go(func() { runtime.LockOSThread() }) // a thread that ends locked is not used again
	}
	all.Wait()
}

// lives fails when a bystander does not.
func lives(t *testing.T, h *helper) {
	t.Helper()
	p := hold(t, h.Process.Pid)
	defer p.Close()
	if v, why := p.Verify(); v != api.VerdictOwned {
		t.Errorf("the canary: %s, %q", v, why)
	}
}

// TestEndThroughHandle ends a verified process, and nobody else.
func TestEndThroughHandle(t *testing.T) {
	canary := start(t, "")
	h := start(t, "")
	p := hold(t, h.Process.Pid)
	defer p.Close()
	if _, _, err := p.Signal(syscall.SIGTERM); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("SIGTERM: %v", err)
	}
	if v, why, err := p.Signal(syscall.SIGKILL); v != api.VerdictOwned || err != nil {
		t.Fatalf("%s, %q, %v", v, why, err)
	}
	err := h.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("it ended with %v, want exit code 1", err)
	}
	if v, why, err := p.Signal(syscall.SIGKILL); v != api.VerdictGone || err != nil {
		t.Errorf("again: %s, %q, %v", v, why, err)
	}
	lives(t, canary)
}

// TestEndRefused: who may not be ended lives, and that is an error.
func TestEndRefused(t *testing.T) {
	h := start(t, mayNotEnd)
	p := hold(t, h.Process.Pid)
	defer p.Close()
	const accessDenied = syscall.Errno(5)
	if v, why, err := p.Signal(syscall.SIGKILL); v != api.VerdictOwned || !errors.Is(err, accessDenied) {
		t.Errorf("%s, %q, %v", v, why, err)
	}
	time.Sleep(50 * time.Millisecond)
	lives(t, h)
}

// TestStrangerIsSpared: a record of another creation time ends nobody.
func TestStrangerIsSpared(t *testing.T) {
	h := start(t, "")
	p := hold(t, h.Process.Pid)
	defer p.Close()
	p.rec.Created++
	if v, why, err := p.Signal(syscall.SIGKILL); v != api.VerdictForeign || err != nil {
		t.Errorf("%s, %q, %v", v, why, err)
	}
	time.Sleep(50 * time.Millisecond)
	lives(t, h)
}

func TestRefused(t *testing.T) {
	for name, pid := range map[string]int{
		"ourselves": os.Getpid(), "our parent": os.Getppid(), "nobody": 0, "negative": -8, "System": 4,
	} {
		if _, err := Hold(pid); !errors.Is(err, pidfd.ErrRefused) {
			t.Errorf("hold %s: %v", name, err)
		}
		if p, v, why := Recall(api.Identity{PID: pid, Created: 1}); p != nil || v != api.VerdictUnverifiable {
			t.Errorf("recall %s: %s, %q", name, v, why)
		}
	}
}
