package events

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"

	"pinfold.dev/api"
)

// line is one of a segment. An event's begins with its number, so that those
// which are not asked for need not be decoded.
type line struct {
	Seq int64  `json:"seq,omitempty"`
	Key string `json:"key,omitempty"`
	*api.Event
	Head   *head  `json:"head,omitempty"`
	Forget string `json:"forget,omitempty"` // a turn
	Closed bool   `json:"closed,omitempty"` // what is above was synced
}

// head is a segment's first line.
type head struct {
	Boot string `json:"boot"`
	Base int64  `json:"base"` // the numbers up to here were given before
	// Keys are those of turns that were not forgotten, from the segments before.
	Keys map[string][]string `json:"keys,omitempty"`
	// Gone are those of them that are of earlier boots, and which.
	Gone map[string]string `json:"gone,omitempty"`
}

// maxLine bounds an event's line: its parts are bounded, see clip.
const maxLine = 64 << 10

const sumSize = len(`,"sum":"01234567"}`)

// appendLine encodes a line with its sum.
func appendLine(b []byte, v line) ([]byte, error) {
	j, err := json.Marshal(v)
	if err != nil {
		return b, fmt.Errorf("encode event: %w", err)
	}
	j = j[:len(j)-1]
	b = append(b, j...)
	return fmt.Appendf(b, ",\"sum\":\"%08x\"}\n", crc32.ChecksumIEEE(j)), nil
}

// parseLine decodes a line without its line feed; false: it is damaged.
func parseLine(b []byte) (v line, ok bool) {
	if len(b) < sumSize {
		return v, false
	}
	body := b[:len(b)-sumSize]
	if string(b[len(body):]) != fmt.Sprintf(",\"sum\":\"%08x\"}", crc32.ChecksumIEEE(body)) {
		return v, false
	}
	if json.Unmarshal(b, &v) != nil {
		return v, false
	}
	if v.Event != nil {
		v.Event.Seq = v.Seq
	}
	return v, (v.Event != nil) == (v.Seq > 0)
}

// seqOf reads the number at a line's beginning; 0: it has none. The line may be
// damaged.
func seqOf(b []byte) (n int64) {
	b, ok := bytes.CutPrefix(b, []byte(`{"seq":`))
	if !ok {
		return 0
	}
	for _, c := range b[:min(len(b), 18)] {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int64(c-'0')
	}
	return n
}

// lineOf is what is to be written of an entry.
func lineOf(e entry) line {
	if e.forget != "" {
		return line{Forget: e.forget}
	}
	return line{Seq: e.event.Seq, Key: e.key, Event: &e.event}
}
