package containment

import (
	"strings"
	"unicode/utf8"

	"pinfold.dev/api"
)

// Bounds of a launch request; the kernel has its own (E2BIG).
const (
	maxWords    = 1 << 16
	maxKey      = 128
	maxDeadline = 366 * 24 * 3600_000 // ms
)

// words are a list as it was sent: as text, or as bytes in its stead.
func words(name string, text []string, raw [][]byte) ([]string, error) {
	if raw == nil {
		return text, nil
	}
	if len(text) > 0 {
		return nil, api.Errorf(api.CodeBadRequest, "%s and %s_b64 are both given", name, name).WithRemedy("give one of them")
	}
	out := make([]string, len(raw))
	for i, w := range raw {
		out[i] = string(w)
	}
	return out, nil
}

// shown is argv for people, and what it really is where that loses something.
func shown(argv []string) (text []string, raw [][]byte) {
	text = make([]string, len(argv))
	lossy := false
	for i, w := range argv {
		text[i] = strings.ToValidUTF8(w, string(utf8.RuneError))
		lossy = lossy || text[i] != w
	}
	if !lossy {
		return text, nil
	}
	for _, w := range argv {
		raw = append(raw, []byte(w))
	}
	return text, raw
}

func checkLaunch(req api.LaunchRequest, argv, env []string, fds int) error {
	if err := checkArgv(argv); err != nil {
		return err
	}
	if len(argv) > maxWords || len(env) > maxWords || len(req.EnvAdd) > maxWords {
		return api.Errorf(api.CodeTooLarge, "argv or env has more than %d words", maxWords)
	}
	for _, w := range env {
		if i := strings.IndexByte(w, '='); i <= 0 || strings.IndexByte(w, 0) >= 0 {
			return api.Errorf(api.CodeBadRequest, "env holds %q, not NAME=value", w)
		}
	}
	for _, w := range req.EnvAdd {
		if w == "" || w[0] == '=' || strings.IndexByte(w, 0) >= 0 {
			return api.Errorf(api.CodeBadRequest, "env_add holds %q, not NAME=value, nor a NAME to remove", w)
		}
	}
	if err := checkCwd(req); err != nil {
		return err
	}
	if err := checkLabels(req.Labels); err != nil {
		return err
	}
	if err := checkGrade(req.MinGrade); err != nil {
		return err
	}
	switch {
	case len(req.IdempotencyKey) > maxKey:
		return api.Errorf(api.CodeBadRequest, "idempotency_key is %d bytes long, at most %d are kept", len(req.IdempotencyKey), maxKey)
	case req.DeadlineMS < 0 || req.DeadlineMS > maxDeadline:
		return api.Errorf(api.CodeBadRequest, "deadline_ms is %d, not between 0 and %d", req.DeadlineMS, int64(maxDeadline))
	}
	if err := checkText("idempotency_key", req.IdempotencyKey); err != nil {
		return err
	}
	if err := checkPassed(req.PassFDs, fds); err != nil {
		return err
	}
	return checkStdio(req.Stdio, fds)
}

func checkArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return api.Errorf(api.CodeBadRequest, "argv is empty").WithRemedy("give the program and its arguments as an array")
	}
	for _, w := range argv {
		if strings.IndexByte(w, 0) >= 0 {
			return api.Errorf(api.CodeBadRequest, "argv holds a NUL byte")
		}
	}
	return nil
}

func checkCwd(req api.LaunchRequest) error {
	switch {
	case req.Cwd != "" && (req.Cwd[0] != '/' || strings.IndexByte(req.Cwd, 0) >= 0):
		return api.Errorf(api.CodeBadRequest, "cwd is %q, not an absolute path", req.Cwd)
	case req.CwdPolicy != "" && req.CwdPolicy != api.CwdMustExist && req.CwdPolicy != api.CwdNearest:
		return api.Errorf(api.CodeBadRequest, "cwd_policy is %q, not must_exist or nearest", req.CwdPolicy)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return api.Errorf(api.CodeBadRequest, "%d labels, at most %d are kept", len(labels), maxLabels)
	}
	n := 0
	for name, value := range labels {
		n += len(name) + len(value)
	}
	if n > maxLabelBytes {
		return api.Errorf(api.CodeBadRequest, "labels are %d bytes long with their names, at most %d are kept", n, maxLabelBytes).
			WithRemedy("keep what is longer where the gateway keeps its own, and its key here")
	}
	return nil
}

// The numbers that a passed descriptor may have; the process's own limit of
// open files may be lower.
const (
	firstFD = 3
	lastFD  = 1023
)

func checkPassed(list []api.PassFD, fds int) error {
	seen := map[int]bool{}
	for _, p := range list {
		switch {
		case p.FD < 0 || p.FD >= fds:
			return api.Errorf(api.CodeBadRequest, "pass_fds names descriptor %d, but %d came with the request", p.FD, fds).
				WithRemedy("send descriptors as SCM_RIGHTS with the request's first byte")
		case p.Number < firstFD || p.Number > lastFD:
			return api.Errorf(api.CodeBadRequest, "pass_fds has number %d, not between %d and %d", p.Number, firstFD, lastFD).
				WithRemedy("0, 1 and 2 are stdio's")
		case seen[p.Number]:
			return api.Errorf(api.CodeBadRequest, "pass_fds has number %d twice", p.Number)
		}
		seen[p.Number] = true
	}
	return nil
}
