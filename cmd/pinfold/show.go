package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) showCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "show TURN",
		Short: "Show all that is known of a turn",
		Args:  exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.client().Turn(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(t, func(st style) string { return renderTurn(t, time.Now(), st) })
		},
	}
}

func renderTurn(t api.Turn, now time.Time, st style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "turn %s  %s", st.paint(bold, clean(t.ID)), t.State)
	if t.Reason != "" {
		fmt.Fprintf(&b, " (%s)", clean(string(t.Reason)))
	}
	b.WriteString("\n")
	f := table{indent: "  "}
	put := func(k, v string) {
		if v != "" {
			f.add(k, v)
		}
	}
	put("label", t.Label)
	put("session", t.Session)
	for _, k := range slices.Sorted(maps.Keys(t.Labels)) {
		put("meta", k+"="+t.Labels[k])
	}
	put("owner", owner(t.Owner))
	put("epoch", fmt.Sprint(t.Epoch))
	put("begun", stamp(t.CreatedAt)+", "+age(now.Sub(t.CreatedAt))+" ago")
	if t.EndedAt != nil {
		put("ended", stamp(*t.EndedAt)+", after "+age(t.EndedAt.Sub(t.CreatedAt)))
	}
	put("grade", string(t.Grade))
	put("cgroup", t.Cgroup)
	put("unit", t.Unit)
	put("limits", limitsText(t.Limits))
	put("leftovers", string(t.Leftovers))
	if t.Frozen {
		put("frozen", "its processes and clocks stand still")
	}
	for _, k := range t.Clocks {
		put("clock", fmt.Sprintf("%s: %s of %s left, %s", k.Name, ageMS(k.LeftMS), ageMS(k.LimitMS), untilText(k)))
	}
	put("client", clientText(t.Client))
	for _, why := range slices.Sorted(maps.Keys(t.Policy)) {
		put("policy", ruleText(why, t.Policy[why]))
	}
	put("alive", alive(t.Alive))
	for _, d := range t.Degraded {
		put("note", d)
	}
	b.WriteString(f.render(style{utf8: st.utf8}))
	if len(t.Processes) > 0 {
		p := table{indent: "  ", head: []string{"PROCESS", "PID", "STATUS", "AGE", "COMMAND"}, right: map[int]bool{1: true, 3: true}}
		for _, x := range t.Processes {
			p.add(x.ID, num(x.PID), statusText(x.Status), age(now.Sub(x.StartedAt)), command(x.Argv))
		}
		b.WriteString("\n" + p.render(st))
		for _, x := range t.Processes {
			b.WriteString(adoptionText(x))
		}
	}
	b.WriteString(survivorsText(t.Survivors, st))
	return b.String()
}

func limitsText(l *api.Limits) string {
	if l == nil {
		return ""
	}
	var s []string
	if l.MemoryBytes > 0 {
		s = append(s, "memory "+size(l.MemoryBytes))
	}
	if l.SwapBytes != nil {
		s = append(s, "swap "+size(*l.SwapBytes))
	}
	if l.PIDs > 0 {
		s = append(s, fmt.Sprintf("processes %d", l.PIDs))
	}
	if l.CPUPercent > 0 {
		s = append(s, fmt.Sprintf("CPU %d%%", l.CPUPercent))
	}
	return strings.Join(s, ", ")
}

func untilText(k api.Clock) string {
	if k.DueAt == nil {
		return "stands still"
	}
	return "ends " + dueText(k)
}

func clientText(c api.Client) string {
	if c.Bind == "" || c.Bind == api.BindNone {
		return ""
	}
	s := "bound to a " + string(c.Bind)
	if c.OnGone == api.OnGoneDetach {
		return s + ", goes on without"
	}
	return s + ", abandoned without"
}

func ruleText(why api.Reason, r api.EndRule) string {
	s := string(why)
	if r.Processes != "" {
		s += ", processes " + string(r.Processes)
	}
	if r.Jobs != "" {
		s += ", jobs " + string(r.Jobs)
	}
	return s
}
