package systemd

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/godbus/dbus/v5"
)

// removed is the signal that a manager sends when a job has ended.
func removed(job dbus.ObjectPath, unit, result string) *dbus.Signal {
	return &dbus.Signal{Body: []any{uint32(1), job, unit, result}}
}

func TestWaitJob(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	conn, err := dbus.NewConn(here)
	if err != nil {
		t.Fatal(err)
	}
	l := &link{conn: conn, jobs: newJobs()}
	deliver := func(s *dbus.Signal) { l.jobs.DeliverSignal(managerIface, "JobRemoved", s) }

	ended, stop := l.jobs.wait("a.scope")
	for range 3 {
		deliver(removed("/job/1", "a.scope", "canceled")) // an earlier job of the unit
	}
	deliver(removed("/job/2", "b.scope", "failed"))
	deliver(&dbus.Signal{Body: []any{"nonsense"}})
	deliver(removed("/job/2", "a.scope", "done"))
	if err := waitJob(t.Context(), l, "/job/2", ended); err != nil {
		t.Errorf("job 2: %v", err)
	}
	deliver(removed("/job/3", "a.scope", "failed"))
	if err := waitJob(t.Context(), l, "/job/3", ended); !errors.Is(err, jobError("failed")) {
		t.Errorf("job 3: %v", err)
	}
	for range 100 {
		deliver(removed("/job/4", "a.scope", "done")) // nobody reads: nobody waits either
	}
	stop()
	if len(l.jobs.waiting) != 0 {
		t.Errorf("still registered: %v", l.jobs.waiting)
	}

	ended, stop = l.jobs.wait("a.scope")
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waitJob(ctx, l, "/job/5", ended); !errors.Is(err, errJobPending) || !errors.Is(err, context.Canceled) {
		t.Errorf("job 5: %v", err)
	}
	conn.Close()
	if err := waitJob(t.Context(), l, "/job/6", ended); !isLost(err) {
		t.Errorf("job 6: %v", err)
	}
}
