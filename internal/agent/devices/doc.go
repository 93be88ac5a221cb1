// Package devices finds the devices of a node that containers can be given, as GPUs, and works out
// what a container needs for one: device files, libraries of the driver, variables and hooks.
//
// The source is the Container Device Interface (CDI, github.com/cncf-tags/container-device-interface):
// files below /etc/cdi and /var/run/cdi, written by the vendor's tools. Where there are none for
// NVIDIA's GPUs, the files of its driver are taken. Package agent uses it.
//
// It must never give a container more than the devices that it was granted.
package devices
