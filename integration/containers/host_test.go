package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// playHost is PID 1 of the host on which the containers run: it mounts what they
// expect, starts the tests and reaps.
func playHost() int {
	if err := furnish(os.Getenv(dirEnv)); err != nil {
		fmt.Println("furnish the host:", err)
		return 1
	}
	if err := os.Setenv(roleEnv, "tests"); err != nil {
		return 1
	}
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	if err != nil {
		fmt.Println("start the tests:", err)
		return 1
	}
	for {
		var ws syscall.WaitStatus
		got, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == syscall.EINTR || err == nil && got != pid {
			continue
		}
		if err != nil || !ws.Exited() {
			fmt.Println("the tests ended:", ws, err)
			return 1
		}
		return ws.ExitStatus()
	}
}

// furnish gives the mount namespace a cgroup v2 at its usual place, and keeps
// our part of cgroup v1's elsewhere.
func furnish(dir string) error {
	if err := syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, c := range controllers() {
		mine, _ := filepath.Glob("/sys/fs/cgroup/" + c + "/" + filepath.Base(run.name(dir)))
		for _, from := range mine {
			to := filepath.Join(dir, "v1", c)
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			if err := syscall.Mount(from, to, "", syscall.MS_BIND, ""); err != nil {
				return fmt.Errorf("mount %s: %w", from, err)
			}
		}
	}
	if err := syscall.Unmount("/sys/fs/cgroup", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the host's cgroups: %w", err)
	}
	for _, m := range []struct{ typ, at, data string }{
		{"cgroup2", "/sys/fs/cgroup", ""}, {"proc", "/proc", ""}, {"tmpfs", "/run", "mode=755"},
	} {
		if err := syscall.Mount(m.typ, m.at, m.typ, syscall.MS_NOSUID|syscall.MS_NODEV, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	// The run's cgroup is the root here. Containers are made below it, beside the
	// host's own processes.
	if err := os.Mkdir("/sys/fs/cgroup/host", 0o755); err != nil {
		return err
	}
	return os.WriteFile("/sys/fs/cgroup/host/cgroup.procs", []byte("0"), 0)
}

// name is how the cgroups of the run with that directory are called.
func (*world) name(dir string) string {
	base := filepath.Base(dir)
	return base[:len(base)-len(filepath.Ext(base))]
}
