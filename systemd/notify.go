package systemd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Notifier tells the service manager that started this process how it is
// (sd_notify(3)), and has it keep descriptors for the next one. What is said is
// sent in the background, so that a manager that hangs holds nobody up. A nil
// Notifier says nothing.
type Notifier struct {
	sock int
	to   syscall.SockaddrUnix
	most int // descriptors that the manager keeps
	log  *slog.Logger
	wake chan struct{}
	done chan struct{}

	mu     sync.Mutex
	say    []string         // lines that are not sent yet, one for each name
	young  map[string]young // descriptors that are not sent yet
	stored map[string]bool  // those that the manager has
	drop   []string         // those that it may forget
	told   bool             // that there are too many
	closed context.Context  // nil: it runs; else: bounds what is still to be sent
}

// young is a descriptor that is sent when it is old enough to be worth it.
type young struct {
	fd  int
	due time.Time
}

const (
	// againAfter is when a manager that took no more messages is tried again.
	againAfter = 20 * time.Millisecond
	// sendTries is how often a message is sent that was refused: a manager that
	// executes itself anew may be away for a moment.
	sendTries = 50
)

// NewNotifier returns the notifier of this process, nil without NOTIFY_SOCKET.
// have are the names of descriptors that the manager keeps already. It keeps as
// many as FDSTORE says, which systemd sets from version 254 on.
func NewNotifier(getenv func(string) string, log *slog.Logger, have []Passed) (*Notifier, error) {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "@") {
		return nil, fmt.Errorf("reach the service manager: NOTIFY_SOCKET is %q, which is no unix socket", path)
	}
	syscall.ForkLock.RLock()
	sock, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
	if err == nil {
		syscall.CloseOnExec(sock)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, fmt.Errorf("reach the service manager: %w", os.NewSyscallError("socket", err))
	}
	most, _ := strconv.Atoi(getenv("FDSTORE")) // unset: none
	n := &Notifier{sock: sock, to: syscall.SockaddrUnix{Name: path}, most: most, log: log, wake: make(chan struct{}, 1),
		done: make(chan struct{}), young: map[string]young{}, stored: map[string]bool{}}
	for _, p := range have {
		n.stored[p.Name] = true
	}
	go n.run()
	return n, nil
}

// Say sends a line such as "READY=1". A line of the same name that is not sent
// yet is replaced.
func (n *Notifier) Say(line string) {
	if n == nil {
		return
	}
	name, _, _ := strings.Cut(line, "=")
	n.mu.Lock()
	for i, l := range n.say {
		if strings.HasPrefix(l, name+"=") {
			n.say = append(n.say[:i], n.say[i+1:]...)
			break
		}
	}
	n.say = append(n.say, line)
	n.mu.Unlock()
	n.poke()
}

// Status shows one line in `systemctl status`.
func (n *Notifier) Status(line string) { n.Say("STATUS=" + Description(line)) }

// Stores tells whether the manager keeps descriptors.
func (n *Notifier) Stores() bool { return n != nil && n.most > 0 }

// Store has the manager keep a descriptor, which it takes over, and hand it to
// the next start of the service (FDSTORE=1); also one that hangs up (FDPOLL=0,
// systemd 246). It is sent when after has passed, unless it was removed by then.
// The name must be one that the manager does not have yet: else, and when it has
// as many as it takes, the descriptor is closed, and false returned.
func (n *Notifier) Store(name string, fd int, after time.Duration) bool {
	if n == nil {
		_ = syscall.Close(fd)
		return false
	}
	n.mu.Lock()
	_, twice := n.young[name]
	full := len(n.young)+len(n.stored) >= n.most
	if twice || n.stored[name] || full || n.closed != nil {
		first := full && n.most > 0 && !n.told
		n.told = n.told || full
		n.mu.Unlock()
		_ = syscall.Close(fd)
		if first {
			n.log.Warn("the service manager keeps no more descriptors: how processes end that are started now may be lost with their keeper",
				"kept", n.most, "remedy", "a larger FileDescriptorStoreMax= and FDSTORE in the unit")
		}
		return false
	}
	n.young[name] = young{fd, time.Now().Add(after)}
	n.mu.Unlock()
	n.poke()
	return true
}

// Remove has the manager forget a descriptor (FDSTOREREMOVE=1).
func (n *Notifier) Remove(name string) {
	if n == nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if y, ok := n.young[name]; ok {
		_ = syscall.Close(y.fd)
		delete(n.young, name)
		return
	}
	if n.stored[name] {
		delete(n.stored, name)
		n.drop = append(n.drop, name)
		n.poke()
	}
}

// Close sends what is still to be sent, until ctx ends. What the manager keeps
// it goes on to keep.
func (n *Notifier) Close(ctx context.Context) {
	if n == nil {
		return
	}
	n.mu.Lock()
	if n.closed == nil {
		n.closed = ctx
	}
	n.mu.Unlock()
	n.poke()
	<-n.done
}

func (n *Notifier) poke() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run sends one message after the other until it is closed.
func (n *Notifier) run() {
	defer close(n.done)
	defer syscall.Close(n.sock)
	for {
		m, wait, closed := n.next()
		switch {
		case m.text != "":
			n.send(m)
			if m.fd >= 0 {
				_ = syscall.Close(m.fd)
			}
		case closed:
			return
		default:
			n.sleep(wait)
		}
	}
}

// sleep waits until there is something to do; 0: nothing is due by itself.
func (n *Notifier) sleep(wait time.Duration) {
	var due <-chan time.Time
	if wait > 0 {
		due = time.After(wait)
	}
	select {
	case <-n.wake:
	case <-due:
	}
}

// message is one to the manager, with a descriptor or without (-1).
type message struct {
	text string
	fd   int
}

// next takes what is to be sent next; blank: nothing is, for so long.
func (n *Notifier) next() (m message, wait time.Duration, closed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	m.fd = -1
	if len(n.say) > 0 {
		m.text, n.say = strings.Join(n.say, "\n"), nil
		return m, 0, false
	}
	if len(n.drop) > 0 {
		m.text, n.drop = "FDSTOREREMOVE=1\nFDNAME="+n.drop[0], n.drop[1:]
		return m, 0, false
	}
	for name, y := range n.young {
		left := time.Until(y.due)
		if left <= 0 || n.closed != nil {
			delete(n.young, name)
			n.stored[name] = true
			return message{"FDSTORE=1\nFDPOLL=0\nFDNAME=" + name, y.fd}, 0, false
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return m, wait, n.closed != nil
}

// send sends one message. While the manager takes none it is tried again, as
// long as it takes, or until Close's context ends.
func (n *Notifier) send(m message) {
	var rights []byte
	if m.fd >= 0 {
		rights = syscall.UnixRights(m.fd)
	}
	for refused := 0; ; time.Sleep(againAfter) {
		err := syscall.Sendmsg(n.sock, []byte(m.text), rights, &n.to, syscall.MSG_DONTWAIT)
		switch {
		case err == nil:
			return
		case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR), errors.Is(err, syscall.ENOBUFS):
		default:
			refused++
		}
		if n.over() || refused > sendTries {
			n.log.Warn("tell the service manager", "what", strings.ReplaceAll(m.text, "\n", " "), "error", os.NewSyscallError("sendmsg", err))
			return
		}
	}
}

// over tells whether Close waits no longer.
func (n *Notifier) over() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.closed != nil && n.closed.Err() != nil
}

// WatchdogEvery is how often the manager wants to hear WATCHDOG=1, halved, as
// sd_watchdog_enabled(3) advises; 0: it does not.
func WatchdogEvery(getenv func(string) string) time.Duration {
	if pid := getenv("WATCHDOG_PID"); pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0
	}
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || usec <= 0 {
		return 0
	}
	return time.Duration(usec) * time.Microsecond / 2
}

// Guard says WATCHDOG=1 each time that alive has returned, until ctx ends. When
// it does not return any more, the manager ends this process and starts another.
func (n *Notifier) Guard(ctx context.Context, every time.Duration, alive func()) {
	if n == nil || every <= 0 {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		alive()
		n.Say("WATCHDOG=1")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
