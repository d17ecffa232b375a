// Package api holds every type that crosses Pinfold's socket or its disk, and
// the sentinel errors that go with them. It imports the standard library only,
// so that server, client, command line and records can never disagree.
//
// JSON is snake_case. Durations are whole milliseconds in fields ending in
// _ms; times are RFC 3339 in UTC; sizes are bytes. A zero value means "not
// said", and each field's comment says what Pinfold then does.
package api
