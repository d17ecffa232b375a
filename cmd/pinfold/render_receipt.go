package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"pinfold.dev/api"
)

// renderReceipt is a receipt as a person reads it: the verdict first, then who
// and why, when, how, and what became of each process; last, whatever is not
// as it should be. It fits 80 columns but for long commands and paths.
func renderReceipt(r api.Receipt, st style) string {
	parts := []string{
		receiptHead(r, st),
		timeline(r, st),
		receiptProcesses(r, st),
		evidenceText(r, st),
		countsText(r.Counts, st),
		leftoversText(r, st),
		reapedText(r.Reaped, st),
		outsideText(r.Outside, st),
		servedText(r.ServedBy, st),
		refusedText(r, st),
		survivorsText(r.Survivors, st),
		usageText(r.Usage, st),
		notesText(r.Notes, st),
	}
	return strings.Join(parts, "")
}

// stamp is a time in UTC to the second.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// verdictWord is what a list says of a receipt.
func verdictWord(r api.Receipt) string {
	if r.Complete {
		return "complete"
	}
	return "INCOMPLETE"
}

func receiptHead(r api.Receipt, st style) string {
	mark, color := st.glyph("✔ ", "")+"complete", green
	if !r.Complete {
		mark, color = st.glyph("✘ ", "")+"INCOMPLETE", red
	}
	head := st.paint(bold+";"+color, mark) + "  turn " + st.paint(bold, clean(r.Turn))
	if r.Label != "" {
		head += "  " + st.glyph("“", `"`) + clean(r.Label) + st.glyph("”", `"`)
	}
	state := string(r.State)
	if string(r.Reason) != state {
		state += ", " + clean(string(r.Reason))
	}
	t := table{indent: "  "}
	t.add("ended as", state)
	t.add("asked by", actorText(r.Actor))
	t.add("held at", fmt.Sprintf("grade %s, epoch %d, owner uid %d", r.Grade, r.Epoch, r.Owner))
	how := r.Mechanism
	if r.Rounds > 0 {
		how += fmt.Sprintf(" (%s)", count(r.Rounds, "round"))
	}
	t.add("ended by", how)
	return head + "\n\n" + t.render(style{utf8: st.utf8})
}

func actorText(a api.Actor) string {
	s := fmt.Sprintf("uid %d", a.UID)
	if a.PID > 0 {
		s += fmt.Sprintf(", pid %d", a.PID)
	}
	if a.Name != "" {
		s = a.Name + " itself"
	}
	if a.Cgroup != "" {
		s += ", in " + a.Cgroup
	}
	return s
}

// timeline tells each step with its distance from the asking.
func timeline(r api.Receipt, st style) string {
	t := table{indent: "  ", right: map[int]bool{1: true}}
	t.add("asked", "0 ms", r.AskedAt.UTC().Format("2006-01-02 15:04:05.000Z"))
	step := func(name string, at *time.Time, remark string) {
		if at != nil {
			t.add(name, offset(at.Sub(r.AskedAt)), remark)
		}
	}
	step("fenced", r.FencedAt, "nothing can be launched any more")
	step("TERM", r.TermAt, fmt.Sprintf("with %s to go by itself", time.Duration(r.GraceMS)*time.Millisecond))
	step("KILL", r.KilledAt, "")
	step("seen empty", r.SeenEmptyAt, "")
	step("leftovers gone", r.LeftoversEndedAt, "")
	return "\n" + t.render(style{utf8: st.utf8})
}

// offset is in milliseconds, with a decimal where there is little.
func offset(d time.Duration) string {
	ms := float64(d.Microseconds()) / 1000
	if ms < 100 && ms > -100 {
		return fmt.Sprintf("%+.1f ms", ms)
	}
	return fmt.Sprintf("%+.0f ms", ms)
}

func receiptProcesses(r api.Receipt, st style) string {
	if len(r.Processes) == 0 {
		return "\n  no process was launched\n"
	}
	t := table{indent: "  ", head: []string{"PROCESS", "PID", "STATUS", "ENDED BY", "VERDICT", "COMMAND"}, right: map[int]bool{1: true}}
	for _, p := range r.Processes {
		by := p.EndedBy
		if p.Escaped {
			by += ", escaped"
		}
		if p.Adopted {
			by += ", adopted"
		}
		pid := num(p.PID)
		if p.PID == 0 { // it had ended before its number here was known
			pid = "-"
		}
		t.add(p.ID, pid, statusText(p.Status), by, string(p.Verdict), command(p.Argv))
	}
	return "\n" + t.render(st)
}

// evidenceText says for each process what it was known by, and by what its end was
// seen, or why nothing was sent to it.
func evidenceText(r api.Receipt, st style) string {
	var b strings.Builder
	for _, p := range r.Processes {
		if len(p.Evidence) == 0 {
			continue
		}
		words := make([]string, len(p.Evidence))
		for i, e := range p.Evidence {
			words[i] = clean(e)
		}
		b.WriteString(wrap("    "+clean(p.ID)+"  ", words, ";"))
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n  on what evidence\n" + st.paint(faint, strings.TrimSuffix(b.String(), "\n")) + "\n"
}

// countsText has nobody who lives among the ended.
func countsText(c api.Counts, st style) string {
	words := []string{
		fmt.Sprintf("%d ended", max(0, c.Ended-c.Survivors)), fmt.Sprintf("%d already gone", c.AlreadyGone),
		fmt.Sprintf("%d foreign", c.Foreign), fmt.Sprintf("%d unverifiable", c.Unverifiable),
		fmt.Sprintf("%d survivors", c.Survivors),
	}
	return "\n  " + strings.Join(words, st.glyph(" · ", ", ")) + "\n"
}

func leftoversText(r api.Receipt, st style) string {
	if len(r.Leftovers) == 0 {
		return ""
	}
	head := fmt.Sprintf("\n  left running and still held: %d  (end: pinfold abandon --leftovers %s)\n", len(r.Leftovers), clean(r.Turn))
	if r.LeftoversEndedAt != nil {
		head = fmt.Sprintf("\n  left running when it finished: %d, gone by %s\n", len(r.Leftovers), stamp(*r.LeftoversEndedAt))
	}
	t := table{indent: "    ", right: map[int]bool{0: true, 1: true, 2: true}}
	for _, l := range r.Leftovers {
		name := l.Comm
		if len(l.Argv) > 0 {
			name = command(l.Argv)
		}
		t.add(num(l.PID), size(l.RSS), ageMS(l.AgeMS), l.Process, name)
	}
	return head + t.render(st)
}

func reapedText(all []api.Reaped, st style) string {
	if len(all) == 0 {
		return ""
	}
	t := table{indent: "    ", right: map[int]bool{0: true, 1: true}}
	for _, o := range all {
		t.add(num(o.PID), ageMS(o.AgeMS), o.Process, o.Comm, string(o.Verdict))
	}
	return fmt.Sprintf("\n  still running when it finished, and reaped: %d\n", len(all)) + t.render(st)
}

func outsideText(out []api.Outside, st style) string {
	if len(out) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n  %s\n", st.paint(yellow, fmt.Sprintf("outside the turn: %d", len(out))))
	for _, o := range out {
		did := "left alone"
		if o.Ended {
			did = "ended"
		}
		name := clean(o.Comm)
		if o.Process != "" {
			name = clean(o.Process) + " " + name
		}
		fmt.Fprintf(&b, "    %d %s: %s\n      in %s\n      %s\n", o.PID, name, did, clean(o.Cgroup), clean(o.Evidence))
	}
	return b.String()
}

// servedText tells for whom a daemon outside did work.
func servedText(all []api.Served, st style) string {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n  %s\n", st.paint(yellow, fmt.Sprintf("connected to daemons outside the turn, which are not contained: %d", len(all))))
	for _, s := range all {
		fmt.Fprintf(&b, "    %d %s: %s\n", s.PID, strings.TrimSpace(clean(s.Process)+" "+clean(s.Comm)), clean(s.Socket))
		for _, m := range s.By {
			fmt.Fprintf(&b, "      of %d %s, in %s\n", m.PID, clean(m.Comm), clean(m.Cgroup))
		}
		if len(s.By) == 0 {
			b.WriteString("      of a process that could not be looked at\n")
		}
	}
	return b.String()
}

// refusedText tells who was looked at and not signalled, and why nobody can say
// whether all has ended.
func refusedText(r api.Receipt, st style) string {
	var b strings.Builder
	if r.Unconfirmed != "" {
		fmt.Fprintf(&b, "\n  %s %s\n", st.paint(bold+";"+red, "UNCONFIRMED:"), clean(r.Unconfirmed))
	}
	if len(r.Refused) > 0 {
		fmt.Fprintf(&b, "\n  %s\n", st.paint(yellow, fmt.Sprintf("looked at and not signalled: %d", len(r.Refused))))
	}
	for _, o := range r.Refused {
		name := clean(o.Comm)
		if o.Process != "" {
			name = clean(o.Process) + " " + name
		}
		fmt.Fprintf(&b, "    %d %s: %s\n      %s\n", o.PID, name, o.Verdict, clean(strings.Join(o.Evidence, "; ")))
	}
	return b.String()
}

func survivorsText(list []api.Survivor, st style) string {
	if len(list) == 0 {
		return ""
	}
	t := table{indent: "    ", head: []string{"PID", "STATE", "WAITS IN", "COMMAND", "CGROUP"}, right: map[int]bool{0: true}}
	for _, s := range list {
		pid := num(s.PID)
		if s.TID != 0 && s.TID != s.PID {
			pid += "/" + num(s.TID)
		}
		wchan := s.WaitChannel
		if wchan == "" {
			wchan = "?"
		}
		t.add(pid, stateText(s.State), wchan, s.Comm, s.Cgroup)
	}
	return "\n  " + st.paint(bold+";"+red, fmt.Sprintf("SURVIVORS: %d could not be ended", len(list))) + "\n" + t.render(st) + survivorsWhy(list)
}

// survivorsWhy says why they are, where that is known, once for all that have it.
func survivorsWhy(list []api.Survivor) string {
	var b strings.Builder
	for i, s := range list {
		same := func(o api.Survivor) bool { return o.Why == s.Why }
		if s.Why == "" || slices.ContainsFunc(list[:i], same) {
			continue
		}
		var pids []string
		for _, o := range list[i:] {
			if same(o) {
				pids = append(pids, num(o.PID))
			}
		}
		fmt.Fprintf(&b, "    %s: %s\n", strings.Join(pids, ", "), clean(s.Why))
	}
	return b.String()
}

// stateText explains the letter of /proc/pid/stat (proc_pid_stat(5)).
func stateText(letter string) string {
	words := map[string]string{"R": "running", "S": "sleeping", "D": "in the kernel", "T": "stopped",
		"t": "traced", "Z": "zombie", "X": "dead", "I": "idle"}
	if w := words[letter]; w != "" {
		return letter + " (" + w + ")"
	}
	return letter
}

func usageText(u api.Usage, st style) string {
	var said, unsaid []string
	put := func(what string, v int64, text string) {
		if v < 0 {
			unsaid = append(unsaid, what)
		} else {
			said = append(said, what+" "+text)
		}
	}
	put("CPU", u.CPUUsec, cpu(u.CPUUsec))
	put("memory peak", u.MemoryPeak, size(u.MemoryPeak))
	put("processes peak", u.PIDsPeak, fmt.Sprint(u.PIDsPeak))
	put("OOM kills", u.OOMKills, fmt.Sprint(u.OOMKills))
	put("read", u.IOReadBytes, size(u.IOReadBytes))
	put("written", u.IOWriteBytes, size(u.IOWriteBytes))
	s := ""
	if len(said) > 0 {
		s = wrap("  used: ", said, st.glyph(" · ", ", "))
	}
	if len(unsaid) > 0 {
		s += st.paint(faint, wrap("  this host does not tell: ", unsaid, ", "))
	}
	return "\n" + s
}

// wrap puts items on lines of at most 78 characters, below one another.
func wrap(head string, items []string, sep string) string {
	width := utf8.RuneCountInString
	var b strings.Builder
	line := head
	for i, item := range items {
		if i > 0 {
			line += strings.TrimRight(sep, " ")
			if width(line)+1+width(item) > 78 {
				b.WriteString(line + "\n")
				line = strings.Repeat(" ", width(head)-1)
			}
			line += " "
		}
		line += item
	}
	return b.String() + line + "\n"
}

func notesText(notes []string, st style) string {
	var b strings.Builder
	for _, n := range notes {
		fmt.Fprintf(&b, "  %s %s\n", st.paint(yellow, "note:"), clean(n))
	}
	return b.String()
}
