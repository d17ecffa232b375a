package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"syscall"
)

// chunk is how much of a body is allocated before any of it has arrived, so
// that a length alone costs the receiver nothing.
const chunk = 64 << 10

// room is where the next bytes of the body go.
func (a *assembly) room() []byte {
	have := a.n - 4
	if have == len(a.body) {
		more := min(a.size-have, max(chunk, have))
		a.body = append(a.body, make([]byte, more)...)
	}
	return a.body[have:]
}

// took accounts for n more bytes and tells whether the frame is whole.
func (a *assembly) took(n int) (bool, error) {
	a.n += n
	if a.n == 4 && a.body == nil {
		size := binary.BigEndian.Uint32(a.head[:])
		if size == 0 || size > MaxFrame {
			return false, fmt.Errorf("%w: length %d", ErrFrame, size)
		}
		a.size = int(size)
	}
	return a.n >= 4 && a.n-4 == a.size, nil
}

// finish decodes the whole frame and makes ready for the next.
func (a *assembly) finish() (Message, []int, error) {
	body, fds := a.body, a.fds
	*a = assembly{}
	var m Message
	if err := json.Unmarshal(body, &m); err != nil {
		closeAll(fds)
		return Message{}, nil, fmt.Errorf("%w: %v", ErrFrame, err)
	}
	if m.FDs != len(fds) {
		closeAll(fds)
		return Message{}, nil, fmt.Errorf("%w: %d descriptors announced, %d came", ErrFrame, m.FDs, len(fds))
	}
	return m, fds, nil
}

// drop gives up the frame and the descriptors that came with it.
func (a *assembly) drop(err error) error {
	closeAll(a.fds)
	*a = assembly{}
	return err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}
