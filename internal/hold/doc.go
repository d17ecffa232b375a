// Package hold puts cgroup, systemd and the keeper together into what package
// containment asks for: a Host that begins turns at the best grade this host
// offers, and a Hold on each of them.
//
// A turn's cgroup looks like this, at both grades:
//
//	<scope or our own directory>/   marked with the turn's nonce
//	  keeper/                       the keeper, alone
//	  work/p1/ work/p2/ …           one fresh leaf per launch; limits are on work/
//
// Ending a turn kills work/, asks the keeper what it still has, lets it go,
// kills what else may be in the turn's cgroup, and removes it.
package hold
