package records

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// A reboot takes the runtime directory along, where that is in /run. What the log of
// events in the state directory tells of the turns is enough to close them, once.
func TestRebootTakesTheRecordsAlong(t *testing.T) {
	s := serve(t)
	canary := newCanary(t, "")
	open, over, done := s.begin(api.BeginRequest{Label: "open", Session: "chat"}), s.begin(api.BeginRequest{Label: "over"}), s.begin(api.BeginRequest{})
	req := api.LaunchRequest{Argv: []string{"sh", "-c", "echo said; exec sleep 100000"}, Stdio: api.Stdio{Stdout: api.Stream{Mode: api.StdioSpool}}}
	if _, err := s.Launch(t.Context(), open.ID, req); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has said that", func() bool { return s.said(open.ID) == "said\n" })
	s.exits(open.ID, "exit 5")
	s.launch(over.ID, "exec sleep 100000")
	if _, err := s.Finish(t.Context(), over.ID, api.FinishRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Abandon(t.Context(), done.ID, api.AbandonRequest{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is over is in the history", func() bool { return s.entry(done.ID).Turn == "" })
	job, err := s.StartJob(t.Context(), api.JobRequest{Launch: api.LaunchRequest{Argv: []string{"sleep", "100000"}}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log has the last of it on disk", func() bool { return s.logged(job.Turn, `"kind":"job"`, `"started"`) })
	s.kill()
	for _, v := range []string{open.Cgroup, over.Cgroup, filepath.Dir(filepath.Dir(job.Cgroup))} {
		remove(t, v)
	}
	if err := os.RemoveAll(s.dir + "/run"); err != nil {
		t.Fatal(err)
	}
	s.logOfAnotherBoot()
	s.start()
	s.closedAfterBoot(open, over, done, job)
	const all = 4
	eventually(t, "all ends are told", func() bool { return s.ends() == all })
	s.kill()
	s.start()
	if again := s.ends(); again != all {
		t.Errorf("%d ends are told after another restart, %d before", again, all)
	}
	canary.lives()
}

func (s *service) closedAfterBoot(open, over, done api.Turn, job api.Job) {
	s.t.Helper()
	v, r := s.look(open.ID), s.receipt(open.ID)
	if v.State != api.StateLost || v.Label != "open" || v.Session != "chat" || v.Owner != open.Owner || r.Complete || !has(r.Notes, "rebooted") {
		s.t.Errorf("%+v, receipt %+v", v, r)
	}
	if len(v.Processes) != 2 || v.Processes[0].Status.State != api.ProcessLost || v.Processes[1].Status != (api.Status{State: api.ProcessExited, Code: 5}) {
		s.t.Errorf("its processes: %+v", v.Processes)
	}
	if said := s.said(open.ID); said != "said\n" {
		s.t.Errorf("its output is %q", said)
	}
	if v := s.look(over.ID); v.State != api.StateFinished || s.receipt(over.ID).Complete {
		s.t.Errorf("what was over: %+v", v)
	}
	if r := s.receipt(done.ID); !r.Complete {
		s.t.Errorf("what is in the history: %+v", r)
	}
	if j, err := s.Job(s.t.Context(), job.ID); err != nil || j.State != api.JobEnded || j.Status.State != api.ProcessLost {
		s.t.Errorf("the job: %+v (%v)", j, err)
	}
}

// said is what the first process of a turn has written.
func (s *service) said(turn string) string {
	s.t.Helper()
	out, err := s.Output(s.t.Context(), turn, "p1", client.OutputQuery{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer out.Close()
	b, err := io.ReadAll(out)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// ends counts the ends of turns and jobs that were told.
func (s *service) ends() (n int) {
	s.t.Helper()
	ev, err := s.Events(s.t.Context(), client.EventQuery{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer ev.Close()
	for {
		e, err := ev.Next()
		if err != nil {
			return n
		}
		if e.Kind == api.EventEnded || e.Kind == api.EventJob && e.Message == "ended" {
			n++
		}
	}
}

// logged tells whether the log of events, on disk, has a line with all of these words.
// It is written in order, and after the answers.
func (s *service) logged(words ...string) bool {
	all, _ := filepath.Glob(s.dir + "/state/events/*.log")
	for _, f := range all {
		b, _ := os.ReadFile(f)
		for line := range strings.Lines(string(b)) {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
				return true
			}
		}
	}
	return false
}

// logOfAnotherBoot makes the log of events what an earlier boot has written.
func (s *service) logOfAnotherBoot() {
	s.t.Helper()
	all, err := filepath.Glob(s.dir + "/state/events/*.log")
	if err != nil || len(all) == 0 {
		s.t.Fatal(all, err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			s.t.Fatal(err)
		}
		head, rest, _ := bytes.Cut(b, []byte("\n"))
		head, _, _ = bytes.Cut(bytes.ReplaceAll(head, bytes.TrimSpace(boot), []byte("00000000-0000-4000-8000-000000000000")), []byte(`,"sum":`))
		head = fmt.Appendf(head, ",\"sum\":\"%08x\"}\n", crc32.ChecksumIEEE(head))
		if err := os.WriteFile(f, append(head, rest...), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}
