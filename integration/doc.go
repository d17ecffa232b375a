// Package integration tests the whole of Pinfold, and the parts of it that
// want a machine of their own. It has tests only.
//
// The beds directory has scripts that run a command under a real systemd: in
// namespaces on this machine's kernel, and in virtual machines with other
// kernels. InNamespaceBed and InVM run tests of this or another package there.
// A test that is to run in a bed starts with needBed and is skipped elsewhere;
// the outer test, which boots the bed, fails when it did not run.
package integration
