package sys

// Place is where a file is, see PlaceOf.
type Place struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Born int64  `json:"born_ns,omitempty"`
}

// Same tells whether two are one file. A birth decides, where it is told: numbers
// may change while a file stays (an overlay's device when it is mounted anew, its
// directories' inodes when its layers are on several file systems), and an inode's
// may be given again.
func (p Place) Same(o Place) bool {
	if p.Born != 0 && o.Born != 0 {
		return p.Born == o.Born
	}
	return p.Ino == o.Ino && p.Dev == o.Dev
}
