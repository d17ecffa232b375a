package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
)

func isGrade(g api.Grade) bool { return g == "" || slices.Contains(api.Grades(), g) }

func leftoverPolicy(c *cobra.Command, s string) (api.LeftoverPolicy, error) {
	switch p := api.LeftoverPolicy(s); p {
	case "", api.LeftoversKeep, api.LeftoversReap:
		return p, nil
	}
	return "", usageError(c, "--leftovers: %q is neither keep nor reap", s)
}

// graceMS is nil where nothing was said.
func graceMS(c *cobra.Command, s string) (*int64, error) {
	if s == "" {
		return nil, nil
	}
	d, err := parseDuration(s)
	if err != nil {
		return nil, usageError(c, "--grace: %v", err)
	}
	ms := d.Milliseconds()
	return &ms, nil
}

// pairs turns KEY=VALUE words into a map.
func pairs(c *cobra.Command, flag string, words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(words))
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		if !ok || k == "" {
			return nil, usageError(c, "--%s: %q is not KEY=VALUE", flag, w)
		}
		m[k] = v
	}
	return m, nil
}

// limitFlags bound all processes of a turn together.
type limitFlags struct {
	memory, swap string
	pids, cpu    int64
}

func (f *limitFlags) register(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&f.memory, "memory", "", "limit of the turn's memory, such as 512M or 4G")
	fs.StringVar(&f.swap, "swap", "", "limit of the turn's swap; 0 for none")
	fs.Int64Var(&f.pids, "pids", 0, "limit of the turn's processes and threads")
	fs.Int64Var(&f.cpu, "cpu", 0, "limit of processor time, in percent of one processor")
}

func (f *limitFlags) limits(c *cobra.Command) (*api.Limits, error) {
	var l api.Limits
	var err error
	if l.MemoryBytes, err = parseBytes(f.memory); err != nil {
		return nil, usageError(c, "--memory: %v", err)
	}
	if f.swap != "" {
		n, err := parseBytes(f.swap)
		if err != nil {
			return nil, usageError(c, "--swap: %v", err)
		}
		l.SwapBytes = &n
	}
	if f.pids < 0 || f.cpu < 0 {
		return nil, usageError(c, "--pids and --cpu take numbers above 0")
	}
	l.PIDs, l.CPUPercent = f.pids, f.cpu
	if l == (api.Limits{}) {
		return nil, nil
	}
	return &l, nil
}

// parseBytes reads a size: a number with an optional K, M, G or T, in powers
// of 1024 as systemd has it.
func parseBytes(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	num, shift := s, 0
	if i := strings.IndexByte("KMGT", strings.ToUpper(s)[len(s)-1]); i >= 0 {
		num, shift = s[:len(s)-1], 10*(i+1)
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("%q is not a size such as 512M or 4G", s)
	}
	return n << shift, nil
}

// warn tells what the host could not give.
func (a *app) warn(lines []string) {
	for _, l := range lines {
		fmt.Fprintf(a.stderr, "pinfold: note: %s\n", clean(l))
	}
}
