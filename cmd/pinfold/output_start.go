package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"pinfold.dev/api"
	"pinfold.dev/client"
)

// outputFlags say where in a kept stream to begin.
type outputFlags struct {
	since int64
	tail  string
	lines bool  // tail counts lines, not bytes
	n     int64 // of them; -1: nothing was said
}

func (f *outputFlags) register(c *cobra.Command) {
	c.Flags().Int64Var(&f.since, "since-offset", 0, "begin at this byte of the stream, counted from its beginning")
	c.Flags().StringVar(&f.tail, "tail", "", "begin N lines before the end, or N bytes with Nb")
}

func (f *outputFlags) check(c *cobra.Command) error {
	f.n = -1
	if f.since < 0 {
		return usageError(c, "--since-offset: %d is below 0", f.since)
	}
	if f.tail == "" {
		return nil
	}
	if c.Flags().Changed("since-offset") {
		return usageError(c, "--since-offset and --tail are both given")
	}
	num, isBytes := strings.CutSuffix(f.tail, "b")
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n < 0 {
		return usageError(c, "--tail: %q is neither a number of lines, such as 20, nor of bytes, such as 4096b", f.tail)
	}
	f.n, f.lines = n, !isBytes
	return nil
}

// start is the offset to begin at.
func (f *outputFlags) start(ctx context.Context, cl *client.Client, p api.Process, name api.StreamName) (int64, error) {
	total := p.Output[name].BytesTotal
	switch {
	case f.n < 0:
		return f.since, nil
	case !f.lines:
		return max(0, total-f.n), nil
	case f.n == 0:
		return total, nil
	}
	return lastLines(total, f.n, func(from, limit int64) ([]byte, int64, error) {
		o, err := cl.Output(ctx, p.Turn, p.ID, client.OutputQuery{Stream: name, Offset: from, Limit: limit})
		if err != nil {
			return nil, 0, err
		}
		defer o.Close()
		b, err := io.ReadAll(o)
		if err != nil {
			return nil, 0, fmt.Errorf("read %s: %w", name, err)
		}
		return b, o.Offset, nil
	})
}

// lineChunk is how much is looked at at once.
const lineChunk = 256 << 10

// lastLines finds where the last n lines before total begin, or a gap before
// which there is nothing. read gives bytes from an offset, and that of the first
// one where it had to begin later.
func lastLines(total, n int64, read func(from, limit int64) ([]byte, int64, error)) (int64, error) {
	end := total
	for end > 0 {
		from := max(0, end-lineChunk)
		b, at, err := read(from, end-from)
		if err != nil {
			return 0, err
		}
		if at >= end {
			return end, nil
		}
		b = b[:min(int64(len(b)), end-at)]
		whole := at+int64(len(b)) == end // else a gap is behind these bytes
		if !whole {
			return at + int64(len(b)), nil
		}
		for i := len(b) - 1; i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if b[i] != '\n' || at+int64(i) == total-1 { // the end of the last line counts for none
				continue
			}
			if n--; n == 0 {
				return at + int64(i) + 1, nil
			}
		}
		if at > from {
			return at, nil
		}
		end = from
	}
	return 0, nil
}
