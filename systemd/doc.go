// Package systemd makes transient scopes in a service manager, PID 1's or a
// user's, and tells the manager that started this service how it is. It is the
// only package that imports D-Bus.
//
// Nothing here is needed to end a turn: a scope's cgroup is killed by package
// cgroup, and the manager is told afterwards.
package systemd
