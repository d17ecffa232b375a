// Package inits tests pinfold-init as the init of a container, beside tini,
// dumb-init and catatonit, and keeps the table of docs/init.md true. Whatever
// is probed is PID 1 of a PID namespace made for it.
package inits
