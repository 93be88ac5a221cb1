// Package identities gets logins for the registries of clouds by the server's own identity there:
// an authorization token of Amazon ECR, an access token of Google Cloud, or a refresh token of an
// Azure Container Registry. Each comes from the credentials that the libraries of that cloud find:
// of the environment, of files, or of the machine (its role, service account or managed identity).
//
// Credentials are looked up for each login, so that a changed file or role counts with the next
// one. Package registry keeps logins, and asks for the next before the end of one.
//
// It must never put a token into an error or a log. Only cmd/muster links it, and a lean program
// does not: the libraries of the clouds are large. It must never be linked into muster-node.
package identities
