package reaper_test

import (
	"syscall"
	"testing"

	"pinfold.dev/internal/wire"
)

// A key launches once: asked for again, on whatever connection and under
// whatever id, the first launch is the answer, while it is decided and after.
func TestKeyLaunchesOnce(t *testing.T) {
	b := newBed(t)
	keyed := func(id, key string, argv ...string) *wire.Launch {
		l := request(id, argv...)
		l.Key = key
		return l
	}
	b.stop(t)
	other := b.connect()
	first := b.ask(wire.Message{Op: wire.OpLaunch, Launch: keyed("a", "k", "sleep", "600")})
	greeting := other.ask(wire.Message{Op: wire.OpHello, Hello: &wire.Hello{Version: wire.Version, Turn: "t1", Nonce: testNonce}})
	again := other.ask(wire.Message{Op: wire.OpLaunch, Launch: keyed("b", "k", "sleep", "600")})
	b.cont(t)
	closeFDs(other.await(wire.Message{Op: wire.OpHello}, greeting).fds)
	for _, ch := range []<-chan answer{first, again} {
		a := b.await(wire.Message{Op: wire.OpLaunch}, ch)
		closeFDs(a.fds)
		if a.Error != nil || a.Started == nil || a.Started.Process != "a" || len(a.fds) != 1 {
			t.Fatalf("the answer is %+v, %d handles", a.Message, len(a.fds))
		}
	}
	if a := b.launch(keyed("c", "k", "sleep", "600")); a.Started == nil || a.Started.Process != "a" {
		t.Errorf("once it runs, the answer is %+v", a.Message)
	}
	if a := b.launch(keyed("d", "other", "sleep", "600")); a.Started == nil || a.Started.Process != "d" {
		t.Errorf("with another key the answer is %+v", a.Message)
	}
	if n := b.intents(); n != 2 {
		t.Errorf("%d launches were made of two keys", n)
	}
	// A launch that was refused uses no key up; one that has ended does.
	if a := b.launch(keyed("e", "refused", "/nonexistent")); a.Error == nil || a.Error.Kind != wire.ErrExec {
		t.Errorf("a launch of nothing: %+v", a.Message)
	}
	b.mustLaunch(keyed("f", "refused", "true"))
	b.exitOf("f")
	if a := b.launch(keyed("g", "refused", "true")); a.Started == nil || a.Started.Process != "f" || len(a.fds) != 0 {
		t.Errorf("once it has ended, the answer is %+v", a.Message)
	}
}

func (b *bed) stop(t *testing.T) { b.signalKeeper(t, syscall.SIGSTOP) }
func (b *bed) cont(t *testing.T) { b.signalKeeper(t, syscall.SIGCONT) }

func (b *bed) signalKeeper(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := b.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
