// Command muster is the server and its command line: it starts servers, submits
// jobs and follows them, and shows what there is.
//
// As a client it knows nothing but the HTTP API (package client) and the two
// small files by which a server on the same host is found (internal/locate); it must
// never read or write a server's state. One file per command.
package main

import "os"

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
