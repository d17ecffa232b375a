package spawn

import "strings"

// DefaultPath is searched when the environment has no PATH.
const DefaultPath = "/usr/local/bin:/usr/bin:/bin"

// candidates lists the paths to try for a command: itself when it has a slash,
// otherwise one for each directory of the environment's PATH, as execvp(3) has
// it. An empty directory is the current one.
func candidates(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path := DefaultPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
			break
		}
	}
	var list []string
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		list = append(list, dir+"/"+name)
	}
	return list
}
