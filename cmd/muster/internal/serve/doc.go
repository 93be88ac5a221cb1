// Package serve has the commands for whoever runs a server: dev, server, config, backup and
// restore.
//
// It is the only package of the command line that imports the server, which is most of the program.
// The others know a server by its API alone, and must stay so: then a command cannot come to depend
// on what only works on the server's own host.
//
// The program has its commands.
package serve
