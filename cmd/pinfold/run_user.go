package main

import "os/user"

// asUser is env with the variables that name a person set for another: HOME,
// USER and LOGNAME; SHELL, which only that user's own entry tells, goes. A
// user that is not known here is left to the service to refuse.
func asUser(env []string, name string) []string {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return env
	}
	for _, kv := range [][2]string{{"HOME", u.HomeDir}, {"USER", u.Username}, {"LOGNAME", u.Username}} {
		env = append(dropEnv(env, kv[0]), kv[0]+"="+kv[1])
	}
	return dropEnv(env, "SHELL")
}
