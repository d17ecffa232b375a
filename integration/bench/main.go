// Command bench measures what Pinfold's promises cost, beside what one would
// use instead, in one run, and prints a table that says where each stands
// against the budget.
//
// It needs root and cgroup v2. What needs a systemd runs in the namespace bed
// (integration/beds), unless the machine has one of its own. Everything is
// ended and removed afterwards, also when the bench itself is killed.
//
// Absolute times are this machine's; the ratios are what travels. The
// contestants of a line take turns, so a busy machine disturbs all of them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"pinfold.dev/api"
	"pinfold.dev/internal/sys"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run plays a part, or measures.
func run(args []string) error {
	if len(args) > 0 {
		switch args[0] {
		case "guard":
			return playGuard(args[1:])
		case "holder":
			return playHolder()
		case "bomb":
			return playBomb(args[1:])
		case "pour":
			return playPour(args[1:])
		}
	}
	var o options
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.Float64Var(&o.rounds, "rounds", 1, "factor on the number of rounds of each measurement")
	fs.StringVar(&o.only, "only", "", "regular expression: which measurements to take (see -list)")
	fs.StringVar(&o.bin, "bin", "", "directory of pinfold and pinfold-init; empty: they are built")
	fs.BoolVar(&o.list, "list", false, "list the measurements")
	fs.BoolVar(&o.json, "json", false, "a JSON object for each line of the table, and no table")
	fs.StringVar(&o.part, "part", "all", "all, machine (grade cgroup) or systemd (grade scope, where systemd runs)")
	fs.BoolVar(&o.verbose, "v", false, "tell where the time goes in each ending")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	only, err := regexp.Compile(o.only)
	if err == nil && o.bin != "" {
		o.bin, err = filepath.Abs(o.bin) // the bed has another working directory
	}
	if err != nil {
		return err
	}
	if o.list {
		for _, m := range append(onMachine(), underSystemd()...) {
			fmt.Println(m.name)
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root, to make cgroups and to boot a systemd")
	}
	rows, err := o.measure(only)
	o.show(rows)
	return err
}

type options struct {
	rounds              float64
	only, bin, part     string
	list, json, verbose bool
}

// measurement is one that can be chosen by name.
type measurement struct {
	name   string
	rounds int
	take   func(b *bench, rounds int) error
}

func onMachine() []measurement {
	ms := []measurement{
		{"launch", 300, (*bench).launchOne},
		{"launches", 12, (*bench).launchMany},
		{"launch-stdio", 200, (*bench).launchStdio},
		{"flow", 5, (*bench).flow},
	}
	for _, s := range []struct{ n, rounds int }{{1, 60}, {10, 60}, {100, 30}, {1000, 12}, {5000, 5}} {
		ms = append(ms, measurement{fmt.Sprintf("abandon-%d", s.n), s.rounds, func(b *bench, rounds int) error {
			return b.abandonSleepers(s.n, rounds)
		}})
	}
	return append(ms,
		measurement{"abandon-launched-1000", 6, func(b *bench, rounds int) error { return b.abandonLaunched(1000, rounds) }},
		measurement{"bomb", 10, (*bench).bombs},
		measurement{"identity", 20, (*bench).identity},
		measurement{"idle", 1, (*bench).idle},
		measurement{"start", 1, (*bench).start},
	)
}

// bench is a run under way.
type bench struct {
	place    *place
	programs *programs
	service  *service
	holder   *holder
	rows     []row
	groups   int // cgroups made so far
	verbose  bool
}

func (b *bench) add(rows ...row) { b.rows = append(b.rows, rows...) }

// measure takes the measurements of the parts that were asked for.
func (o *options) measure(only *regexp.Regexp) (rows []row, err error) {
	chosen := func(ms []measurement) (out []measurement) {
		for _, m := range ms {
			if only.MatchString(m.name) {
				out = append(out, m)
			}
		}
		return out
	}
	if m, _, err := sys.FindCgroup2(); err == nil {
		sweep(m.Path)
	}
	p, err := openPlace(o.bin)
	if err != nil {
		return nil, err
	}
	g, err := startGuard(p)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	defer func() { err = errors.Join(err, p.close(), g.stop()) }()
	if ms := chosen(onMachine()); len(ms) > 0 && o.part != "systemd" {
		if rows, err = o.take(p, api.GradeCgroup, ms); err != nil {
			return rows, err
		}
	}
	if ms := chosen(underSystemd()); len(ms) > 0 && o.part != "machine" {
		var more []row
		if o.part == "systemd" || haveSystemd() {
			more, err = o.take(p, api.GradeScope, ms)
		} else {
			more, err = o.inBedOf(p)
		}
		rows = append(rows, more...)
	}
	return rows, err
}

// take starts a service and measures with it.
func (o *options) take(p *place, grade api.Grade, ms []measurement) (rows []row, err error) {
	b := &bench{place: p, verbose: o.verbose}
	if b.programs, err = newPrograms(p.dir); err != nil {
		return nil, err
	}
	if b.service, err = p.serve("service-"+string(grade), grade); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.service.stop()) }()
	if b.holder, err = p.startHolder(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.holder.stop()) }()
	for _, m := range ms {
		start := time.Now()
		if err := m.take(b, max(1, int(float64(m.rounds)*o.rounds))); err != nil {
			return b.rows, fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %.1f s\n", m.name, time.Since(start).Seconds())
	}
	return b.rows, nil
}

// show prints what was measured.
func (o *options) show(rows []row) {
	if o.json {
		printJSON(os.Stdout, rows)
		return
	}
	if len(rows) == 0 {
		return
	}
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("median (90th percentile); contestants took turns; load %s\n",
		strings.Join(strings.Fields(string(load))[:3], " "))
	print(os.Stdout, rows)
}
