package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// print writes the rows as one table.
func print(w io.Writer, rows []row) {
	head := []string{"", "Pinfold", "against", "that", "ratio", "budget", ""}
	cells := [][]string{head}
	for _, r := range rows {
		cells = append(cells, []string{r.What, r.Ours, r.Peer, r.Theirs, r.Ratio, r.Budget, r.Stands})
	}
	width := make([]int, len(head))
	for _, line := range cells {
		for i, c := range line {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	group := ""
	for i, line := range cells {
		if i > 0 && rows[i-1].Group != group {
			group = rows[i-1].Group
			fmt.Fprintf(w, "\n%s\n", group)
		}
		var b strings.Builder
		for j, c := range line {
			pad := strings.Repeat(" ", width[j]-utf8.RuneCountInString(c))
			if j == 1 || j == 3 || j == 4 {
				c, pad = pad+c, ""
			}
			b.WriteString("  " + c + pad)
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}
