// Package crash lists the fault points of the source (internal/fault) and, for
// each, lives through a turn in which the service, its keeper, both or the
// client die right there; see plan_test.go for what is not tried and why. After
// each crash the client goes on as clients do: it looks, and asks again. It has
// tests only.
//
// It needs root and cgroup v2, and holds turns at grade cgroup; for the points of
// turns without a cgroup, and for some of the usual ones again, at grade subreaper
// or token (bare_test.go). With -short only the points of launching and ending are
// tried, and one victim at each.
package crash
