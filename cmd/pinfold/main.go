// Command pinfold is the command line and the service: it holds the processes
// of agent turns and ends exactly those. One binary, so that the two cannot
// differ in version.
//
// One file per command; root.go puts them together, exit.go has the exit codes
// and tells errors, render_*.go turn the API's types into what people read.
package main

import "os"

func main() { os.Exit(runMain(os.Args[1:])) }
