// Package hold puts cgroup, systemd and the keeper together into what package
// containment asks for: a Host that begins turns at the best grade this host
// offers, and a Hold on each of them.
//
// A turn's cgroup looks like this, at both grades:
//
//	<scope or our own directory>/   marked with the turn's nonce
//	  keeper/                       the keeper, alone
//	  work/p1/ work/p2/ …           one fresh leaf per launch; limits are on work/
//	  jobs/p2/ …                    launches that outlive the turn; limits as work/'s
//
// A job is a launch whose leaf, members and all, was moved from work/ to jobs/, or
// one member with its descendants that was. It keeps its keeper, and with that its
// streams and its exit status. Which launches are jobs is read from the
// directories: a leaf in jobs/ bears the turn's mark once it is whole. What is said
// of the turn, and its ending, does not reach jobs/, and while a job lives nothing
// is let go.
//
// Ending a turn kills work/, asks the keeper what it still has, and makes sure
// that nobody but the keeper is left; that is what a receipt stands on. The
// keeper goes, and the cgroup is removed, when the receipt is stored. What else
// may be in the turn's cgroup is ended before.
package hold
