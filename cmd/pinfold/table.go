package main

import (
	"strings"
	"unicode/utf8"
)

// table lines up columns. A cell is shown clean; the last column is cut to the
// screen, the others never.
type table struct {
	indent string
	head   []string
	right  map[int]bool // columns of numbers
	rows   [][]string
}

func (t *table) add(cells ...string) {
	for i := range cells {
		cells[i] = clean(cells[i])
	}
	t.rows = append(t.rows, cells)
}

func (t *table) render(st style) string {
	rows := t.rows
	if len(t.head) > 0 {
		rows = append([][]string{t.head}, rows...)
	}
	var widths []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for n, r := range rows {
		line := t.line(r, widths, st)
		if n == 0 && len(t.head) > 0 {
			line = st.paint(faint, line)
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func (t *table) line(r []string, widths []int, st style) string {
	var b strings.Builder
	b.WriteString(t.indent)
	used := utf8.RuneCountInString(t.indent)
	for i, c := range r {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c))
		switch {
		case t.right[i]:
			c = pad + c
		case i < len(r)-1:
			c += pad
		case st.width > used:
			c = cut(c, st.width-used, st)
		}
		if i < len(r)-1 {
			c += "  "
		}
		used += utf8.RuneCountInString(c)
		b.WriteString(c)
	}
	return strings.TrimRight(b.String(), " ")
}
