package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func (a *app) doctorCmd() *cobra.Command {
	var onDisk bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this host can do, and what is missing",
		Long: `Ask the service what it found on this host: the grade at which turns are held,
and each check with what to do about it. Where no service answers, look at what
can be seen without one, and say so.

With --records: tell what is on disk instead, what of it cannot be used and why,
and what is left over.

Exit status: 0 when a service answers and can hold turns, 1 when it cannot, or none
answers. With --records: 0 when nothing there needs to be looked at, 1 when something
does; others as in "pinfold help exit-codes".`,
		Args: exactArgs(0),
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), doctorTime)
			defer cancel()
			if onDisk {
				l, err := a.client().Records(ctx)
				if err != nil {
					return err
				}
				return a.doctorRecords(l)
			}
			h, err := a.client().Host(ctx)
			without := ""
			if err != nil {
				h, without = localHost(a, err)
			}
			if err := a.print(h, func(st style) string { return renderHost(h, without, st) }); err != nil {
				return err
			}
			if without != "" || h.Grade == "" {
				return status(exitNo)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&onDisk, "records", false, "tell what is on disk, and what is wrong with it")
	return c
}

// doctorTime is how long a service is waited for.
const doctorTime = 10 * time.Second

// renderHost shows what a service told, or what was seen without one, and why: "" is
// a service that told.
func renderHost(h api.Host, without string, st style) string {
	var b strings.Builder
	running := without == ""
	if running {
		fmt.Fprintf(&b, "pinfold %s holds turns at grade %s (asked for %s)\n\n", clean(h.Version), st.paint(bold, string(h.Grade)), h.Asked)
	} else {
		fmt.Fprintf(&b, "%s: this is what can be seen without one\n\n", st.paint(bold+";"+yellow, without))
	}
	t := table{indent: "  "}
	put := func(k, v string) {
		if v != "" {
			t.add(k, v)
		}
	}
	put("kernel", h.Kernel)
	put("cgroup v2", h.CgroupMount)
	put("turns below", h.CgroupRoot)
	if h.Controllers != nil {
		names := "none: turns are held, but without limits"
		if len(h.Controllers) > 0 {
			names = strings.Join(h.Controllers, " ")
		}
		put("controllers", names)
	}
	put("systemd", h.Systemd)
	put("records", h.RuntimeDir)
	put("receipts", h.StateDir)
	if running {
		put("service", fmt.Sprintf("uid %d, %s open", h.UID, count(h.Turns, "turn")))
	}
	b.WriteString(t.render(style{utf8: st.utf8}) + "\n")
	for _, c := range h.Checks {
		mark := st.paint(green, st.glyph("✔", "ok"))
		if !c.OK {
			mark = st.paint(yellow, st.glyph("✘", "no"))
		}
		fmt.Fprintf(&b, "  %s %s", mark, clean(c.Name))
		if c.Detail != "" {
			fmt.Fprintf(&b, ": %s", clean(c.Detail))
		}
		b.WriteString("\n")
		if c.Remedy != "" && !c.OK {
			fmt.Fprintf(&b, "      try: %s\n", clean(c.Remedy))
		}
	}
	return b.String()
}

// localHost is what can be told of a host whose service does not answer, or not with
// what was asked, and which of these.
func localHost(a *app, why error) (h api.Host, without string) {
	d := dirsFor(os.Getuid(), a.getenv)
	h = api.Host{Version: version, UID: uint32(os.Getuid()), RuntimeDir: d.runtime, StateDir: d.state}
	e := asAPIError(why)
	if errors.Is(why, context.DeadlineExceeded) {
		e = api.Errorf(api.CodeUnavailable, "it takes connections, and does not answer within %s", doctorTime).
			WithRemedy("see its log, and whether it is stopped or wants CPU or memory; its turns can wait: a restart loses none")
	}
	without = "no service answers"
	if e.Code != api.CodeUnavailable {
		without = "a service answers, and does not tell"
	}
	h.Checks = append(h.Checks, api.HostCheck{Name: "service", Detail: e.Message, Remedy: e.Remedy})
	probeLocal(&h)
	return h, without
}
