package reaper_test

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"pinfold.dev/internal/wire"
	"pinfold.dev/internal/wire/wirenet"
)

// BenchmarkLaunch is one launch into an open turn, until its end is announced,
// against os/exec of the same, and against what cannot be saved, in turns. It
// reports the ratios of the medians. The shorter the program, the worse the
// ratio: noop is nothing but exit(2).
func BenchmarkLaunch(b *testing.B) {
	for _, path := range []string{noop(b), "/bin/true"} {
		b.Run(filepath.Base(path), func(b *testing.B) { benchLaunch(b, path) })
	}
}

func benchLaunch(b *testing.B, path string) {
	bed := newBed(b)
	launch := bed.roundTrip(b, path)
	peer := func(int) {
		c := exec.Command(path)
		c.Env, c.Dir = cleanEnv, "/"
		if err := c.Run(); err != nil {
			b.Fatal(err)
		}
	}
	var took [3][]time.Duration
	for n := 0; b.Loop(); n++ {
		for i, f := range []func(int){launch, peer, func(n int) { bed.floor(b, path, n) }} {
			t0 := time.Now()
			f(n)
			took[i] = append(took[i], time.Since(t0))
		}
	}
	us := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Nanoseconds()) / 1e3
	}
	b.ReportMetric(us(took[0]), "launch-us")
	b.ReportMetric(us(took[1]), "os/exec-us")
	b.ReportMetric(us(took[2]), "floor-us")
	b.ReportMetric(us(took[0])/us(took[1]), "launch/os-exec")
	b.ReportMetric(us(took[2])/us(took[1]), "floor/os-exec")
}

// floor is what cannot be saved: a fresh leaf, clone into it, wait, remove it.
func (b *bed) floor(t testing.TB, path string, n int) {
	leaf := b.cgroup + "/f" + strconv.Itoa(n)
	if err := os.Mkdir(leaf, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(leaf)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path)
	c.Env, c.Dir = cleanEnv, "/"
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	err = c.Run()
	dir.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(leaf); err != nil {
		t.Fatal(err)
	}
}

// roundTrip returns a function that launches path and waits for its end, on a
// connection of its own that one goroutine uses.
func (b *bed) roundTrip(t testing.TB, path string) func(n int) {
	raw, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(wirenet.FromUnixConn(raw))
	t.Cleanup(func() { c.Close() })
	step := func(m wire.Message) {
		if err := c.Send(m, nil); err != nil {
			t.Fatal(err)
		}
		m, fds, err := c.Recv()
		if err != nil || m.Error != nil {
			t.Fatal(err, m.Error)
		}
		closeFDs(fds)
	}
	step(wire.Message{ID: 1, Op: wire.OpHello, Hello: &wire.Hello{Version: 1, Turn: "t1", Nonce: testNonce}})
	b.conn.Close()
	return func(n int) {
		step(wire.Message{ID: 2, Op: wire.OpLaunch, Launch: request("p"+strconv.Itoa(n), path)})
		if m, _, err := c.Recv(); err != nil || m.Exit == nil || m.Exit.Code != 0 {
			t.Fatal(m, err)
		}
	}
}

// noop makes a static program that exits with 0 at once: two instructions in
// the smallest ELF file there is.
func noop(t testing.TB) string {
	code := []byte{0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // xor edi,edi; mov eax,60; syscall
	machine := uint16(62)
	if runtime.GOARCH == "arm64" { // mov x0,0; mov x8,93; svc 0
		code, machine = []byte{0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4}, 183
	}
	const base, head = 0x400000, 64 + 56
	e := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	le := binary.LittleEndian
	for _, v := range []uint16{2, machine} {
		e = le.AppendUint16(e, v)
	}
	e = le.AppendUint32(e, 1)
	for _, v := range []uint64{base + head, 64, 0} {
		e = le.AppendUint64(e, v)
	}
	e = le.AppendUint32(e, 0)
	for _, v := range []uint16{64, 56, 1, 64, 0, 0} {
		e = le.AppendUint16(e, v)
	}
	e = le.AppendUint32(e, 1)
	e = le.AppendUint32(e, 5)
	size := uint64(head + len(code))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		e = le.AppendUint64(e, v)
	}
	path := filepath.Join(scratch, "noop")
	if _, err := os.Stat(path); err != nil {
		if err := os.WriteFile(path, append(e, code...), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
