package containment

import (
	"pinfold.dev/api"
)

// Bounds of streams.
const (
	maxData     = 1 << 20
	leastKept   = 4 << 10
	mostKept    = 1 << 30
	defaultKept = 16 << 20
	maxRows     = 1000
	maxCols     = 4096
)

// modes says which modes each stream takes.
var modes = map[string]string{
	"stdin":  "null, pass, data, pipe or pty",
	"stdout": "null, pass, spool or pty",
	"stderr": "null, pass, spool, pty or stdout",
}

func takes(stream string, mode api.StdioMode) bool {
	switch mode {
	case "", api.StdioNull, api.StdioPass, api.StdioPTY:
		return true
	case api.StdioData, api.StdioPipe:
		return stream == "stdin"
	case api.StdioSpool:
		return stream != "stdin"
	case api.StdioStdout:
		return stream == "stderr"
	}
	return false
}

type namedStream struct {
	name string
	s    *api.Stream
}

func streams(s *api.Stdio) [3]namedStream {
	return [3]namedStream{{"stdin", &s.Stdin}, {"stdout", &s.Stdout}, {"stderr", &s.Stderr}}
}

func checkStdio(s api.Stdio, fds int) error {
	for _, n := range streams(&s) {
		if err := checkStream(n.name, *n.s, fds); err != nil {
			return err
		}
	}
	switch terminal := hasTerminal(s); {
	case s.PTY != nil && !terminal:
		return api.Errorf(api.CodeBadRequest, "stdio.pty has a size, but no stream has mode pty")
	case terminal && s.Stdout.Mode == api.StdioSpool:
		return api.Errorf(api.CodeBadRequest, "stdout has mode spool, but the terminal's output is kept under that name").
			WithRemedy("give stdout mode pty, pass or null")
	}
	return nil
}

func checkStream(name string, s api.Stream, fds int) error {
	keeps := s.Mode == api.StdioSpool || s.Mode == api.StdioPTY
	switch {
	case !takes(name, s.Mode):
		return api.Errorf(api.CodeBadRequest, "%s has mode %q, not %s", name, s.Mode, modes[name])
	case s.Mode == api.StdioPass && (s.FD < 0 || s.FD >= fds):
		return api.Errorf(api.CodeBadRequest, "%s passes descriptor %d, but %d came with the request", name, s.FD, fds).
			WithRemedy("send descriptors as SCM_RIGHTS with the request's first byte")
	case s.Mode != api.StdioPass && s.FD != 0:
		return api.Errorf(api.CodeBadRequest, "%s names descriptor %d, but has mode %q, not pass", name, s.FD, s.Mode)
	case len(s.Data) > 0 && s.Mode != api.StdioData:
		return api.Errorf(api.CodeBadRequest, "%s has data, but mode %q, not data", name, s.Mode)
	case len(s.Data) > maxData:
		return api.Errorf(api.CodeTooLarge, "%s has %d bytes of data, at most %d go with a launch", name, len(s.Data), maxData).
			WithRemedy("use mode pipe and POST …/stdin")
	case s.MaxBytes != 0 && !keeps:
		return api.Errorf(api.CodeBadRequest, "%s has max_bytes, but its mode %q keeps nothing", name, s.Mode)
	case s.MaxBytes != 0 && (s.MaxBytes < leastKept || s.MaxBytes > mostKept):
		return api.Errorf(api.CodeBadRequest, "%s has max_bytes %d, not between %d and %d", name, s.MaxBytes, leastKept, mostKept)
	}
	return nil
}

func hasTerminal(s api.Stdio) bool {
	return s.Stdin.Mode == api.StdioPTY || s.Stdout.Mode == api.StdioPTY || s.Stderr.Mode == api.StdioPTY
}

// settleStdio fills in what was not said.
func settleStdio(s api.Stdio) api.Stdio {
	if s.Stderr.Mode == api.StdioStdout && s.Stdout.Mode == api.StdioPTY {
		s.Stderr.Mode = api.StdioPTY
	}
	for _, n := range streams(&s) {
		switch n.s.Mode {
		case "":
			n.s.Mode = api.StdioNull
		case api.StdioSpool, api.StdioPTY:
			if n.s.MaxBytes == 0 {
				n.s.MaxBytes = defaultKept
			}
		}
	}
	if hasTerminal(s) {
		size := api.WinSize{Rows: 24, Cols: 80}
		if s.PTY != nil {
			size = clamp(*s.PTY)
		}
		s.PTY = &size
	}
	return s
}

func clamp(s api.WinSize) api.WinSize {
	return api.WinSize{Rows: min(max(s.Rows, 1), maxRows), Cols: min(max(s.Cols, 1), maxCols)}
}

// kept says which streams of a settled request are kept, and how much of each.
func kept(s api.Stdio) map[api.StreamName]int64 {
	out := map[api.StreamName]int64{}
	if hasTerminal(s) {
		for _, n := range streams(&s) { // the terminal is one: the largest wish counts
			if n.s.Mode == api.StdioPTY {
				out[api.StreamStdout] = max(out[api.StreamStdout], n.s.MaxBytes)
			}
		}
	}
	if s.Stdout.Mode == api.StdioSpool {
		out[api.StreamStdout] = s.Stdout.MaxBytes
	}
	if s.Stderr.Mode == api.StdioSpool {
		out[api.StreamStderr] = s.Stderr.MaxBytes
	}
	return out
}

// writable is how a settled request's stdin can be written to; empty: not.
func writable(s api.Stdio) api.StdioMode {
	if s.Stdin.Mode == api.StdioPipe || s.Stdin.Mode == api.StdioPTY {
		return s.Stdin.Mode
	}
	return ""
}
