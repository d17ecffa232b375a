// Package fallback is for hosts without cgroups or pidfds: processes held by the
// best that the host has (a pidfd, an open directory of /proc, a start token),
// process groups and their witnesses, and the walk below a child subreaper.
//
// Every decision is written against the small interface kernel, and never
// against the system: what is signalled was held first, verified against what is
// held, and is verified again before the next step. Only api.VerdictOwned is ever
// signalled. What was refused is in every result, with the verdict and what it
// rests on. See docs/identity.md.
package fallback
