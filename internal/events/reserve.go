package events

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"pinfold.dev/internal/ownfile"
)

// reserveBlock is how many numbers are reserved at once.
const reserveBlock = 1024

func (l *Log) reserveFile() string { return filepath.Join(l.cfg.RuntimeDir, "events.reserved") }

// readReserve is how far an earlier service may have told numbers that are on no
// disk.
func (l *Log) readReserve() int64 {
	if l.cfg.RuntimeDir == "" {
		return 0
	}
	b, err := ownfile.Read(l.reserveFile(), 64)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	l.reserved = n
	return n
}

// mind looks after the disk while something waits for it.
func (l *Log) mind() {
	l.mu.Lock()
	if len(l.recent) == l.done {
		l.minding = false
		l.mu.Unlock()
		return
	}
	late := time.Since(l.since) >= l.cfg.Patience
	var news error // logged without the lock: who adds waits for nothing
	if late && l.trouble == nil {
		news = fmt.Errorf("write events: none has been written for %s: the disk hangs, or the host is busy", time.Since(l.since).Round(time.Millisecond))
		l.trouble = news
	}
	l.mu.Unlock()
	if news != nil {
		l.cfg.Log.Warn("events wait to be written: they are kept in memory", "error", news)
	}
	if late {
		l.goOn()
	}
	time.AfterFunc(l.cfg.Patience, l.mind)
}

// goOn lets readers see what is not on disk, once it is noted how far.
func (l *Log) goOn() {
	l.reserveMu.Lock()
	defer l.reserveMu.Unlock()
	l.mu.Lock()
	if l.trouble == nil || len(l.recent) == l.done { // it went on just now
		l.mu.Unlock()
		return
	}
	l.stuck = true
	want := l.reserved
	if l.reserved < l.last+reserveBlock/2 {
		want = l.last + reserveBlock
	}
	l.mu.Unlock()
	if want != l.reserved {
		if err := l.writeReserve(want); err != nil {
			l.cfg.Log.Warn("reserve numbers for events: readers see none that are not on disk", "error", err)
			return
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reserved = want
	l.showReserved()
	l.broadcast() // who flushes waits no longer
}

// showReserved shows what is not on disk and may be told all the same; the lock
// is held.
func (l *Log) showReserved() {
	if l.stuck {
		l.show(min(l.last, l.reserved))
	}
}

func (l *Log) writeReserve(n int64) error {
	if l.cfg.RuntimeDir == "" {
		return fmt.Errorf("there is no runtime directory")
	}
	return ownfile.Replace(l.reserveFile(), []byte(strconv.FormatInt(n, 10)+"\n"), false)
}

// giveBack ends a reservation: everything that was told is on disk. The writer
// calls it.
func (l *Log) giveBack() {
	l.reserveMu.Lock()
	defer l.reserveMu.Unlock()
	l.mu.Lock()
	idle := len(l.recent) == l.done && l.trouble == nil && l.queued == l.last // a gap at the end is on disk with what follows it
	if idle {
		l.stuck = false
	}
	held := l.reserved > 0
	l.mu.Unlock()
	if !idle || !held {
		return
	}
	if err := os.Remove(l.reserveFile()); err != nil && !os.IsNotExist(err) {
		return // the next service passes some numbers over
	}
	l.mu.Lock()
	l.reserved = 0
	l.mu.Unlock()
}
