//go:build !amd64

package main

func hardwarePorts() verdict { return absent("this processor has none") }
