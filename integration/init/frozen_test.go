package inits

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// playDisk makes a file system in DIR/disk and freezes it when it reads a line:
// who writes there then hangs in state D. When its input ends, for whatever
// reason, it thaws and unmounts it; it is not to be killed with the test.
func playDisk(dir string) int {
	image, disk := filepath.Join(dir, "image"), filepath.Join(dir, "disk")
	tool := func(name string, args ...string) {
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			fmt.Printf("%s %q: %v: %s\n", name, args, err, out)
			os.Exit(1)
		}
	}
	check(os.Mkdir(disk, 0o755))
	check(os.WriteFile(image, nil, 0o600))
	check(os.Truncate(image, 8<<20))
	tool("mkfs.ext4", "-q", image)
	tool("mount", "-o", "loop", image, disk)
	fmt.Println("mounted")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err == nil {
		tool("fsfreeze", "-f", disk)
		fmt.Println("frozen")
		_, _ = io.Copy(io.Discard, in)
		tool("fsfreeze", "-u", disk)
	}
	for i := 0; exec.Command("umount", disk).Run() != nil && i < 3000; i++ {
		time.Sleep(20 * time.Millisecond) // whoever hung there may take a moment to go
	}
	return 0
}

// disk is a file system that can be frozen.
type disk struct {
	t    *testing.T
	dir  string
	in   io.WriteCloser
	said *bufio.Reader
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	for _, name := range []string{"mkfs.ext4", "fsfreeze"} {
		needProgram(t, name)
	}
	if !there("/dev/loop-control") {
		missing(t, "loop devices")
	}
	dir := t.TempDir()
	c := exec.Command(run.exe, "disk", dir)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.StdinPipe()
	check(err)
	out, err := c.StdoutPipe()
	check(err)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d := &disk{t, filepath.Join(dir, "disk"), in, bufio.NewReader(out)}
	t.Cleanup(func() {
		d.thaw()
		if err := c.Wait(); err != nil {
			t.Errorf("the disk: %v", err)
		}
	})
	d.says("mounted\n")
	return d
}

func (d *disk) says(want string) {
	d.t.Helper()
	if line, err := d.said.ReadString('\n'); line != want {
		d.t.Fatalf("the disk says %q (%v)", line, err)
	}
}

func (d *disk) freeze() {
	_, _ = io.WriteString(d.in, "freeze\n")
	d.says("frozen\n")
}

func (d *disk) thaw() { d.in.Close() }

// Beside an orphan that waits for a disk, and cannot be killed, the others are
// reaped, and signals passed on. The init tells of it, and goes.
func TestFrozenDisk(t *testing.T) {
	builds(t, func(t *testing.T, bin string) {
		d := newDisk(t)
		file := filepath.Join(t.TempDir(), "status")
		text := `(sh -c 'while :; do echo x >` + d.dir + `/beat; done' &); until [ -e ` + d.dir + `/beat ]; do sleep 0.02; done; echo writes; read line
			until grep -q "^State:.D" /proc/[0-9]*/status; do sleep 0.02; done
			i=0; while [ $i -lt 50 ]; do (: &); i=$((i+1)); done; trap "u=1; echo usr1" USR1; kill -USR1 1
			until [ "$u" ] && grep -q '"orphans":50' ` + file + `; do sleep 0.05; done; echo reaped; exit 5`
		r, w, err := os.Pipe()
		check(err)
		defer w.Close()
		b := start(t, script(bin, []string{"--status", file, "--kill-remaining=100ms"}, text), func(c *exec.Cmd) { c.Stdin = r })
		r.Close()
		b.says("writes")
		d.freeze()
		_, _ = io.WriteString(w, "go\n")
		b.says("reaped")
		b.says("1 process has not ended though killed for 3000 ms")
		d.thaw() // until then the kernel keeps the namespace
		if code := b.code(); code != 5 || !strings.Contains(b.out.String(), "usr1") {
			t.Errorf("code %d\n%s", code, b.out.String())
		}
	})
}
