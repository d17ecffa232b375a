// Package containers tests Pinfold in OCI containers under crun and runc, as
// packaging/images makes them, and keeps the table of docs/containers.md true.
// Everything runs in namespaces made for the run; cgroup v2 is where containers
// expect it there.
package containers
