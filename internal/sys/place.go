package sys

// Place is where a file is, see PlaceOf.
type Place struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Born int64  `json:"born_ns,omitempty"`
}

// Same tells whether two are one file. A device's number may change while a file
// stays (an overlay that is mounted anew), and an inode's may be given again; a
// birth is both's own, where it is told.
func (p Place) Same(o Place) bool {
	if p.Ino != o.Ino {
		return false
	}
	if p.Born != 0 && o.Born != 0 {
		return p.Born == o.Born
	}
	return p.Dev == o.Dev
}
