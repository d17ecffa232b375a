// Package store keeps turns on disk: one JSON file per live turn below the
// runtime directory, which is small, quick and gone with the boot, and the
// history of ended turns in an embedded database below the state directory.
//
// A live record survives the service. It is written to a new file that is then
// renamed, so a reader sees the old one or the new one. The history is written
// after the ending was announced, from the record, so an ending does not wait
// for a real disk, but where the live record cannot be written: then the end goes
// into the history first, and stands, whatever the live record says.
package store
