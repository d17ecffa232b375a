package turns

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"pinfold.dev/api"
)

// fill writes to a file until there is no room left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{64 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
}

// With no room left for records and output, what runs is not held up, nothing
// is launched that cannot be recorded, turns are ended, and a killed service
// comes back.
func TestFullDisks(t *testing.T) { fullDisks(t, grades(t)[0]) }

// Without cgroups, too: the turn of the self-test finds no room then.
func TestFullDisksWithoutCgroups(t *testing.T) { barely(t, fullDisks) }

func fullDisks(t *testing.T, g api.Grade) {
	var mounts []string
	t.Cleanup(func() { // after the service's own end
		for _, m := range mounts {
			if err := syscall.Unmount(m, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	})
	s := newService(t, g, options{})
	for _, dir := range []string{s.dir + "/run", s.dir + "/state"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4m,mode=755"); err != nil {
			t.Fatal(err)
		}
		mounts = append(mounts, dir)
	}
	s.start()
	x := s.begin(t, api.BeginRequest{})
	p := x.launch(api.LaunchRequest{Argv: []string{"sh", "-c", "head -c 30000000 /dev/zero; exit 7"}, Stdio: stdio("", api.StdioSpool, "")})
	if p = x.ended(p.ID); p.Status.Code != 7 || p.Output[api.StreamStdout].BytesTotal != 30000000 || p.Output[api.StreamStdout].BytesLost == 0 {
		t.Errorf("%+v", p)
	}
	x.launch(api.LaunchRequest{Argv: []string{"sleep", "1000"}})
	fill(t, s.dir+"/run/fill")
	if _, err := s.Begin(t.Context(), api.BeginRequest{}); err == nil {
		t.Error("a turn that cannot be recorded was begun")
	}
	var refused *api.Error
	for n := 2; refused == nil; n++ { // a page of the journal may have room
		if _, err := s.Launch(t.Context(), x.ID, api.LaunchRequest{Argv: []string{"sleep", "1000"}}); err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if n > 1000 {
			t.Fatal("launches go on without room for them in the journal")
		}
	}
	if !isBare(g) {
		x.recorded()
	}
	s.kill()
	s.restart()
	if v := x.look(); v.State != api.StateOpen || v.Alive < 1 {
		t.Errorf("%+v", v)
	}
	x.abandon(0)
	if err := os.Remove(s.dir + "/run/fill"); err != nil {
		t.Fatal(err)
	}
	y := s.begin(t, api.BeginRequest{})
	if _, err := s.Run(t.Context(), y.ID, api.LaunchRequest{Argv: []string{"true"}}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	y.abandon(0)
	if _, err := s.Acknowledge(t.Context(), x.ID, p.ID); err != nil { // what was kept goes, and makes room for the history
		t.Error(err)
	}
	eventually(t, "the ended turns in the history", func() bool {
		left, err := os.ReadDir(s.dir + "/run/turns")
		return err == nil && len(left) == 0
	})
}
