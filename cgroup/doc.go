// Package cgroup works on cgroup v2 directories: it finds the mount, makes,
// marks and limits cgroups, kills what is in them, sees them empty, counts what
// they used and removes them.
//
// A Dir is an open descriptor, and everything is done beneath that descriptor:
// when the directory has been removed and another made under the same path, the
// Dir sees a removed cgroup and never the other. See cgroups(7) and the kernel's
// Documentation/admin-guide/cgroup-v2.rst.
package cgroup
