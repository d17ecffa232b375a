//go:build !linux

package sys

// PidfdSignalThread has Linux's value.
const PidfdSignalThread = 1

// PidfsRoot has Linux's value.
const PidfsRoot = -10002

// HandleOf returns ENOSYS.
func HandleOf(fd int) (kind int32, bytes []byte, err error) {
	return 0, nil, nosys("name_to_handle_at")
}

// OpenHandle returns ENOSYS.
func OpenHandle(mount int, kind int32, bytes []byte) (int, error) {
	return -1, nosys("open_by_handle_at")
}
