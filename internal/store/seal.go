package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"pinfold.dev/containment"
)

// A record is written as two lines of JSON: itself, and its check sum (CRC-32C).
// A flipped bit could otherwise make another cgroup of the one that it names.
const (
	sumHead = "\n{\"crc32c\":\""
	sumTail = "\"}\n"
	sumLen  = len(sumHead) + 8 + len(sumTail)
)

func checkSum(b []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func seal(r containment.Record) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return append(b, sumHead+checkSum(b)+sumTail...), nil
}

var errSum = errors.New("its check sum is wrong: it was damaged")

// unseal reads a record. One that has no check sum is of an earlier version; it
// must be whole, and alone.
func unseal(b []byte, r *containment.Record) error {
	if at := len(b) - sumLen; at > 0 && bytes.HasPrefix(b[at:], []byte(sumHead)) && bytes.HasSuffix(b, []byte(sumTail)) {
		if sum := string(b[at+len(sumHead):][:8]); sum != checkSum(b[:at]) {
			return errSum
		}
		b = b[:at]
	}
	err := json.Unmarshal(b, r)
	if err == nil {
		return nil
	}
	var head struct {
		Schema int `json:"schema"`
	}
	if json.Unmarshal(b, &head) == nil && head.Schema > containment.RecordSchema {
		return fmt.Errorf("it has schema %d, this service knows %d: %w", head.Schema, containment.RecordSchema, containment.ErrNewer)
	}
	return err
}
