// Package operators has the commands by which an operator sees and steers a cluster: explain, node,
// pool, namespace, provider, image, cost and events.
//
// Orders carry who gave them and reason, recorded in the history later. The package decides
// nothing: what a node or a pool is allowed to do is the server's to say, and the package must
// never work around its answer.
//
// The program has its commands.
package operators
