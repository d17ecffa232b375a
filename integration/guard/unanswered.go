package guard

import (
	"slices"
	"strings"
)

// Unanswered are the turns whose keepers have not answered a service yet, by what it
// has logged since its start. It waits two seconds for one, and less for the others
// then, which a busy machine may take longer than: until they answer nothing can be
// launched there, and what has ended meanwhile is not known.
func Unanswered(log string) (turns []string) {
	for line := range strings.Lines(log) {
		_, rest, ok := strings.Cut(line, " turn=")
		turn, _, _ := strings.Cut(strings.TrimSuffix(rest, "\n"), " ")
		said := func(what string) bool { return strings.Contains(line, ` msg=`+what+` turn=`) }
		switch {
		case !ok:
		case said(`"a keeper does not answer yet"`):
			turns = append(turns, turn)
		case said(`"the keeper answers"`), said(`"keeper lost"`), said(`"turn ended"`):
			turns = slices.DeleteFunc(turns, func(t string) bool { return t == turn })
		}
	}
	return turns
}
