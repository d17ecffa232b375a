package main

import (
	"fmt"
	"sort"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) treeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "tree TURN",
		Short: "Show the processes that a turn holds, as a tree",
		Long: `Show every process that a turn holds now, whoever its parent is: what has
daemonised itself is still here. FROM is the launch that it descends from. S is
the state as ps(1) has it; one in Z runs on in other threads than its main one.`,
		Args: exactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			t, err := a.client().Tree(c.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(t, func(st style) string { return renderTree(t, st) })
		},
	}
}

// renderTree draws members below their parents. One whose parent is not in the
// turn (the keeper, mostly) is a root.
func renderTree(t api.Tree, st style) string {
	f := forest{below: map[int][]api.Member{}, st: st, table: &table{
		head:  []string{"FROM", "PID", "USER", "S", "RSS", "AGE", "COMMAND"},
		right: map[int]bool{1: true, 4: true, 5: true},
	}}
	in := map[int]bool{}
	for _, m := range t.Members {
		in[m.PID] = true
	}
	for _, m := range t.Members {
		parent := m.PPID
		if !in[parent] || parent == m.PID {
			parent = 0
		}
		f.below[parent] = append(f.below[parent], m)
	}
	f.draw(0, "", true)
	head := fmt.Sprintf("turn %s holds %s (grade %s)\n", clean(t.Turn), count(len(t.Members), "process"), t.Grade)
	if len(t.Members) == 0 {
		return head
	}
	return head + f.table.render(st)
}

type forest struct {
	below map[int][]api.Member
	table *table
	st    style
}

func (f *forest) draw(parent int, prefix string, root bool) {
	kids := f.below[parent]
	delete(f.below, parent) // each is drawn once, even if pids lie
	sort.Slice(kids, func(i, j int) bool { return kids[i].PID < kids[j].PID })
	for i, m := range kids {
		branch, next := f.st.glyph("├─ ", "|- "), f.st.glyph("│  ", "|  ")
		if i == len(kids)-1 {
			branch, next = f.st.glyph("└─ ", "`- "), "   "
		}
		if root {
			branch, next = "", ""
		}
		from := m.Process
		if from == "" {
			from = "?"
		}
		comm := prefix + branch + m.Comm
		if m.State == "Z" {
			comm += " (its main thread has ended)"
		}
		f.table.add(from, num(m.PID), owner(m.UID), m.State, size(m.RSS), ageMS(m.AgeMS), comm)
		f.draw(m.PID, prefix+next, false)
	}
}
