package containers

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// playTTY says whether it has the terminal, counts interrupts, and ends with 9 a
// while after the first.
func playTTY([]string) int {
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGINT)
	var group int32
	_, _, e := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	fmt.Println("in the foreground:", e == 0 && int(group) == syscall.Getpgrp())
	<-got
	n := 1
	for end := time.After(200 * time.Millisecond); ; n++ {
		select {
		case <-got:
			continue
		case <-end:
		}
		break
	}
	fmt.Println("interrupts:", n)
	return 9
}

// ^C at a container's terminal reaches its command once.
func TestTerminal(t *testing.T) {
	runtimes(t, func(t *testing.T, rt oci) {
		b := initOnly(t, nil, as("tty")...)
		b.Process.Terminal = true
		b.Process.ConsoleSize = &specs.Box{Height: 24, Width: 80}
		c := rt.start(t, b)
		c.says("in the foreground: true")
		if _, err := c.in.Write([]byte{3}); err != nil {
			t.Fatal(err)
		}
		c.says("interrupts: 1\r\n")
		if code := c.code(); code != 9 {
			t.Errorf("code %d", code)
		}
	})
}
