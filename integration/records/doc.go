// Package records kills, damages, fills and crowds what the service keeps on
// disk, and looks what it does about that: each cell of the table of
// docs/restart.md, damaged records, full disks, two services, many turns, an
// earlier keeper. It has tests only.
//
// It needs root and cgroup v2, and holds turns at grade cgroup.
package records
