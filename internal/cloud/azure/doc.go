// Package azure is the driver of Microsoft Azure: instances are virtual machines of one resource
// group, offerings its sizes by zone and market.
//
// One call makes a machine with its network interface, address and disk, and all go when it goes. A
// machine's name follows from owner and token, and the call makes only what does not exist, so a
// create that is repeated meets the machine that was made before. Azure accepts most creates and
// finds out later that it has no capacity: the machine then stays, failed, and the driver says so in
// Create, if it learns of it within a minute, and in lists. The rules and codes are those of
// Microsoft's documentation and of the Azure provider of Karpenter.
//
// It must never touch what has not its owner's tag, never repeat a create by itself, and never log
// user data. A machine that shuts itself down is billed on: only Stop and Destroy end its costs.
package azure
