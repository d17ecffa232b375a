package sys

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"
)

// laid lays a structure out: each number at its place, little-endian.
func laid(size int, at map[int]any) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 0xa5 // what is not read may hold anything
	}
	for i, v := range at {
		if _, err := binary.Encode(b[i:], binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return b
}

// The structures as the headers have them, field by field: macOS's
// kinfo_proc (sys/sysctl.h, sys/proc.h) and proc_bsdinfo (sys/proc_info.h),
// FreeBSD's kinfo_proc (sys/user.h). Started 2026-11-30 01:45:34.123456 UTC.
const startSec, startUsec, startUS = 1796003134, 123456, 1796003134123456

func darwinRow(state byte) []byte {
	return laid(648, map[int]any{
		0: int64(startSec), 8: int32(startUsec), // extern_proc: p_starttime
		36: state, 40: int32(4711), // p_stat, p_pid
		296 + 264: int32(1), 296 + 268: int32(4700), // eproc: e_ppid, e_pgid
	})
}

func bsdInfoRow(state uint32) []byte {
	return laid(136, map[int]any{
		4: state, 12: uint32(4711), 16: uint32(1), 100: uint32(4700), // pbi_status, pbi_pid, pbi_ppid, pbi_pgid
		120: uint64(startSec), 128: uint64(startUsec), // pbi_start_tvsec, pbi_start_tvusec
	})
}

func freebsdRow(state byte) []byte {
	return laid(1088, map[int]any{
		0: int32(1088), 4: int32(0), // ki_structsize, ki_layout
		72: int32(4711), 76: int32(1), 80: int32(4700), // ki_pid, ki_ppid, ki_pgid: after eight pointers
		336: int64(startSec), 344: int64(startUsec), // ki_start
		388: state, // ki_stat
	})
}

func TestParseRows(t *testing.T) {
	entry := ProcEntry{PID: 4711, PPID: 1, Group: 4700, StartUS: startUS}
	zombie := entry
	zombie.Zombie = true
	change := func(b []byte, at int, v any) []byte {
		if _, err := binary.Encode(b[at:], binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
		return b
	}
	const running, stopped = 2, 4 // SRUN, SSTOP
	for name, test := range map[string]struct {
		parse func([]byte) (ProcEntry, error)
		in    []byte
		want  ProcEntry
		err   error
	}{
		"macOS":                     {ParseDarwinKinfo, darwinRow(running), entry, nil},
		"macOS, stopped":            {ParseDarwinKinfo, darwinRow(stopped), entry, nil},
		"macOS, zombie":             {ParseDarwinKinfo, darwinRow(sZomb), zombie, nil},
		"macOS, no such process":    {ParseDarwinKinfo, nil, ProcEntry{}, ErrNoEntry},
		"macOS, short":              {ParseDarwinKinfo, darwinRow(running)[:647], ProcEntry{}, ErrParse},
		"macOS, two rows":           {ParseDarwinKinfo, append(darwinRow(running), darwinRow(running)...), ProcEntry{}, ErrParse},
		"macOS, no start":           {ParseDarwinKinfo, change(darwinRow(running), 0, int64(0)), ProcEntry{}, ErrParse},
		"macOS, before 1970":        {ParseDarwinKinfo, change(darwinRow(running), 0, int64(-5)), ProcEntry{}, ErrParse},
		"macOS, a second too long":  {ParseDarwinKinfo, change(darwinRow(running), 8, int32(1e6)), ProcEntry{}, ErrParse},
		"macOS, negative µs":        {ParseDarwinKinfo, change(darwinRow(running), 8, int32(-1)), ProcEntry{}, ErrParse},
		"macOS, pid 0":              {ParseDarwinKinfo, change(darwinRow(running), 40, int32(0)), ProcEntry{}, ErrParse},
		"macOS, pid -1":             {ParseDarwinKinfo, change(darwinRow(running), 40, int32(-1)), ProcEntry{}, ErrParse},
		"proc_info":                 {ParseDarwinBSDInfo, bsdInfoRow(running), entry, nil},
		"proc_info, zombie":         {ParseDarwinBSDInfo, bsdInfoRow(sZomb), zombie, nil},
		"proc_info, short":          {ParseDarwinBSDInfo, bsdInfoRow(running)[:64], ProcEntry{}, ErrParse},
		"FreeBSD":                   {ParseFreeBSDKinfo, freebsdRow(running), entry, nil},
		"FreeBSD, zombie":           {ParseFreeBSDKinfo, freebsdRow(sZomb), zombie, nil},
		"FreeBSD, short":            {ParseFreeBSDKinfo, freebsdRow(running)[:1000], ProcEntry{}, ErrParse},
		"FreeBSD, nothing":          {ParseFreeBSDKinfo, nil, ProcEntry{}, ErrNoEntry},
		"FreeBSD, of another size":  {ParseFreeBSDKinfo, change(freebsdRow(running), 0, int32(1096)), ProcEntry{}, ErrParse},
		"FreeBSD, no start":         {ParseFreeBSDKinfo, change(freebsdRow(running), 336, int64(0)), ProcEntry{}, ErrParse},
		"FreeBSD, half a pid":       {ParseFreeBSDKinfo, freebsdRow(running)[:74], ProcEntry{}, ErrParse},
		"FreeBSD, a row of macOS's": {ParseFreeBSDKinfo, darwinRow(running), ProcEntry{}, ErrParse},
		"macOS, a row of FreeBSD's": {ParseDarwinKinfo, freebsdRow(running), ProcEntry{}, ErrParse},
	} {
		got, err := test.parse(test.in)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, test.want, test.err)
		}
	}
}

// What ps prints of "-o pid= -o ppid= -o pgid= -o stat= -o lstart=" with
// LC_ALL=C and TZ=UTC0: the columns' widths differ from system to system.
func TestParsePS(t *testing.T) {
	at := func(s string) uint64 {
		when, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return uint64(when.Unix()) * 1e6
	}
	for name, test := range map[string]struct {
		in   string
		want ProcEntry
		err  error
	}{
		"macOS":            {in: "  501     1   501 Ss   Tue Sep  1 09:03:07 2026    \n", want: ProcEntry{501, 1, 501, at("2026-09-01 09:03:07"), false}},
		"macOS, zombie":    {in: " 7423  7420  7420 Z+   Mon Nov 30 01:45:34 2026    \n", want: ProcEntry{7423, 7420, 7420, at("2026-11-30 01:45:34"), true}},
		"FreeBSD":          {in: "1234  900 1234 I+J  Sun Feb 29 23:59:59 2032\n", want: ProcEntry{1234, 900, 1234, at("2032-02-29 23:59:59"), false}},
		"Linux":            {in: "  27640   27634   27640 Ssl  Mon Nov 30 01:45:34 2026\n", want: ProcEntry{27640, 27634, 27640, at("2026-11-30 01:45:34"), false}},
		"no row":           {in: "", err: ErrNoEntry},
		"no row, blank":    {in: "\n", err: ErrNoEntry},
		"a header":         {in: "  PID  PPID  PGID STAT STARTED\n  501     1   501 Ss   Tue Sep  1 09:03:07 2026\n", err: ErrParse},
		"two rows":         {in: "501 1 501 Ss Tue Sep 1 09:03:07 2026\n502 1 501 Ss Tue Sep 1 09:03:07 2026\n", err: ErrParse},
		"another locale":   {in: "  501     1   501 Ss   Di.  1 Sep. 09:03:07 2026\n", err: ErrParse},
		"Japanese":         {in: "501 1 501 Ss 火  9/ 1 09:03:07 2026\n", err: ErrParse},
		"another weekday":  {in: "  501     1   501 Ss   Mon Sep  1 09:03:07 2026\n", err: ErrParse},
		"no such day":      {in: "  501     1   501 Ss   Tue Feb 30 09:03:07 2026\n", err: ErrParse},
		"time of day":      {in: "  501     1   501 Ss   09:03AM\n", err: ErrParse},
		"cut":              {in: "  501     1   501 Ss   Tue Sep  1 09:03:07 20", err: ErrParse},
		"split in two":     {in: "  501     1   501 Ss\nTue Sep  1 09:03:07 2026\n", err: ErrParse},
		"negative pid":     {in: " -501     1   501 Ss   Tue Sep  1 09:03:07 2026\n", err: ErrParse},
		"pid 0":            {in: "    0     0     0 Ss   Tue Sep  1 09:03:07 2026\n", err: ErrParse},
		"pid of 11 digits": {in: "10000000000 1 1 Ss Tue Sep  1 09:03:07 2026\n", err: ErrParse},
		"1970":             {in: "  501     1   501 Ss   Thu Jan  1 00:00:00 1970\n", err: ErrParse},
	} {
		got, err := ParsePS([]byte(test.in))
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, test.want, test.err)
		}
	}
}

func TestBootTimes(t *testing.T) {
	mac := laid(16, map[int]any{0: int64(startSec), 8: int32(startUsec)}) // and padding
	bsd := laid(16, map[int]any{0: int64(startSec), 8: int64(startUsec)})
	if us, err := ParseTimeval(mac, 4); us != startUS || err != nil {
		t.Errorf("macOS: %d, %v", us, err)
	}
	if us, err := ParseTimeval(bsd, 8); us != startUS || err != nil {
		t.Errorf("FreeBSD: %d, %v", us, err)
	}
	for _, bad := range [][]byte{nil, bsd[:8], append(bsd, 0), make([]byte, 16)} {
		if us, err := ParseTimeval(bad, 8); !errors.Is(err, ErrParse) {
			t.Errorf("%x: %d, %v", bad, us, err)
		}
	}
	// An hour after the boot, whatever the clock says of either.
	const hour = 3600e6
	for _, step := range []uint64{0, 7e6, 86400e6} {
		if us, err := SinceBoot(startUS+hour+step, startUS+step); us != hour || err != nil {
			t.Errorf("clock set by %d µs: %d, %v", step, us, err)
		}
	}
	for _, bad := range [][2]uint64{{5, 0}, {5, 5}, {5, 6}} {
		if _, err := SinceBoot(bad[0], bad[1]); !errors.Is(err, ErrParse) {
			t.Errorf("start %d, boot %d: %v", bad[0], bad[1], err)
		}
	}
}

// FuzzProcessTable: whatever a table holds, a row is either refused or has a
// number and a start.
func FuzzProcessTable(f *testing.F) {
	for _, seed := range [][]byte{darwinRow(2), bsdInfoRow(5), freebsdRow(2), []byte("501 1 501 Ss Tue Sep 1 09:03:07 2026\n"), nil} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) (ProcEntry, error){ParseDarwinKinfo, ParseDarwinBSDInfo, ParseFreeBSDKinfo, ParsePS} {
			e, err := parse(b)
			switch {
			case err != nil && e != ProcEntry{}:
				t.Errorf("%+v beside %v", e, err)
			case err == nil && (e.PID <= 0 || e.PPID < 0 || e.StartUS == 0):
				t.Errorf("%+v", e)
			}
		}
	})
}
