//go:build soak

package faults

const soak = true
