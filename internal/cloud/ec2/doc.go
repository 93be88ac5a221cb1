// Package ec2 is the driver of Amazon EC2: a thin client of its query API with the credentials and
// the signer of AWS's own library.
//
// A token of Muster becomes a client token of EC2, which is zonal: the same token in another zone
// or subnet would make a second instance. So the client token follows from owner, token, zone and
// subnet, and another subnet is tried only after EC2 has definitely refused the first.
// Intents of the same kind share one call, up to eight: EC2 allows two such calls a second. The
// instances of one call have the same user data, of which each uses the part of its launch index,
// and the same tags, of which each has the entry of its launch index.
//
// The driver makes no call twice: EC2 reports a lack of capacity and throttling as 5xx, which a
// client that repeats by itself would repeat for nothing. It must never log user data, which has
// private host keys.
package ec2
