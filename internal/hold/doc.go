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
// Ending a turn kills work/, asks the keeper what it still has, and makes sure
// that nobody but the keeper is left; that is what a receipt stands on. The
// keeper goes, and the cgroup is removed, when the receipt is stored. What else
// may be in the turn's cgroup is ended before.
package hold
