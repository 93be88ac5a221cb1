//go:build !soak

package faults

const soak = false
