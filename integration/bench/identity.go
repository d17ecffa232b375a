package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/fallback"
	"pinfold.dev/internal/sys"
	"pinfold.dev/pidfd"
)

// identity compares what it costs to know processes again with the system calls
// that it takes at least, and with reading start ticks, which proves less.
// Signal 0 is sent: the whole way but the delivery.
func (b *bench) identity(rounds int) error {
	const n, records = 1000, 10000
	herd, err := b.programs.herd(n)
	if err != nil {
		return err
	}
	measure := func(cgroup string, _ int) (time.Duration, error) {
		known, err := know(cgroup)
		if err == nil {
			err = b.identitySignal(known, rounds)
		}
		if err == nil {
			err = b.identityRecords(known, records, rounds)
		}
		for _, k := range known {
			_ = k.process.Close()
			_ = k.handle.Close()
		}
		d, e := bareKill(cgroup)
		if err == nil {
			err = e
		}
		return d, err
	}
	_, err = b.endBare(n, measure, herd)
	return err
}

// acquaintance is a process that was recorded and is held.
type acquaintance struct {
	process *fallback.Process
	handle  *pidfd.Handle
	rec     api.Identity
}

// know holds all members of the cgroups below a directory.
func know(cgroup string) (all []acquaintance, err error) {
	host := fallback.NewHost()
	list, err := os.ReadFile(filepath.Join(cgroup, "leaf/cgroup.procs"))
	if err != nil {
		return nil, err
	}
	pids, err := sys.ParseNumbers(list)
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		h, err := pidfd.Open(pid)
		if err != nil {
			return all, err
		}
		p, err := host.HoldHandle(h)
		if err != nil {
			return all, err
		}
		all = append(all, acquaintance{p, h, p.Identity()})
	}
	return all, nil
}

const identityGroup = "identity: is this the process that was recorded?"

// identitySignal compares checking and signalling with the signals alone, and
// with what a check takes at least: inode, life, signal.
func (b *bench) identitySignal(known []acquaintance, rounds int) error {
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = sys.Close(fd)
		}
	}()
	for _, k := range known {
		fd, err := k.handle.Dup()
		if err != nil {
			return err
		}
		fds = append(fds, fd)
	}
	got, err := compare(rounds,
		contestant{"checked", func() (time.Duration, error) {
			return since(func() error { return each(known, signalChecked) })
		}},
		contestant{"floor", func() (time.Duration, error) {
			return since(func() error {
				for i, fd := range fds {
					ino, _ := sys.PidfsIno(fd)
					exited, err := sys.PidfdExited(fd)
					if err == nil {
						err = sys.PidfdSendSignal(fd, 0, 0)
					}
					if exited || err != nil || ino != known[i].rec.Ino {
						return fmt.Errorf("process %d: %w", known[i].rec.PID, err)
					}
				}
				return nil
			})
		}},
		contestant{"ticks", func() (time.Duration, error) {
			return since(func() error {
				for i, fd := range fds {
					if err := sameTick(known[i].rec); err != nil {
						return err
					}
					if err := sys.PidfdSendSignal(fd, 0, 0); err != nil {
						return err
					}
				}
				return nil
			})
		}},
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("check and signal %d held processes", len(known))
	b.add(against(identityGroup, what, got[0], got[1], "fstat, poll and the signal, bare", budget{}),
		against(identityGroup, what, got[0], got[2], "start tick read from /proc, then the signal", budget{times: 1}))
	return nil
}

func signalChecked(k acquaintance) error {
	v, why, err := k.process.Signal(0)
	if v != api.VerdictOwned || err != nil {
		return fmt.Errorf("process %d: %s, %q, %w", k.rec.PID, v, why, err)
	}
	return nil
}

func each(known []acquaintance, do func(acquaintance) error) error {
	for _, k := range known {
		if err := do(k); err != nil {
			return err
		}
	}
	return nil
}

// sameTick is the naive check: it holds for whoever has the number, and started
// in the same 10 ms.
func sameTick(rec api.Identity) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(rec.PID) + "/stat")
	if err != nil {
		return err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 || string(f[19]) != strconv.FormatUint(rec.StartTicks, 10) {
		return fmt.Errorf("process %d: another tick", rec.PID)
	}
	return nil
}

// identityRecords compares opening and verifying recorded processes with what
// opening them takes at least, and with reading their start ticks.
func (b *bench) identityRecords(known []acquaintance, n, rounds int) error {
	opener := pidfd.NewOpener()
	all := func(do func(rec api.Identity) error) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			return since(func() error {
				for i := range n {
					if err := do(known[i%len(known)].rec); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	got, err := compare(rounds,
		contestant{"opened and verified", all(func(rec api.Identity) error {
			h, v, why := opener.Open(rec)
			if v != api.VerdictOwned {
				return fmt.Errorf("process %d: %s, %q", rec.PID, v, why)
			}
			return h.Close()
		})},
		contestant{"floor", all(func(rec api.Identity) error {
			fd, err := sys.PidfdOpen(rec.PID, 0)
			if err != nil {
				return err
			}
			defer sys.Close(fd)
			if ino, _ := sys.PidfsIno(fd); ino != rec.Ino {
				return fmt.Errorf("process %d: another inode", rec.PID)
			}
			return nil
		})},
		contestant{"ticks", all(sameTick)},
	)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("find %d records' processes again", n)
	b.add(against(identityGroup, what, got[0], got[1], "pidfd_open, fstat, close, bare", budget{}),
		against(identityGroup, what, got[0], got[2], "start ticks read from /proc", budget{times: 1}))
	return nil
}
