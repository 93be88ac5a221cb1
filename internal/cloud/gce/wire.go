package gce

import "strings"

// What the API takes and answers, as far as the driver uses it. The names are those of Google's
// discovery document; numbers of 64 bits are text there.

// instance is a virtual machine. What an insert does not send is in answers alone.
type instance struct {
	Name              string            `json:"name,omitempty"`
	MachineType       string            `json:"machineType,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	LabelFingerprint  string            `json:"labelFingerprint,omitempty"`
	Disks             []attachedDisk    `json:"disks,omitempty"`
	NetworkInterfaces []nic             `json:"networkInterfaces,omitempty"`
	Metadata          *metadata         `json:"metadata,omitempty"`
	Scheduling        *scheduling       `json:"scheduling,omitempty"`
	GuestAccelerators []attachedGPUs    `json:"guestAccelerators,omitempty"`
	Zone              string            `json:"zone,omitempty"`
	Status            string            `json:"status,omitempty"`
	CreationTimestamp string            `json:"creationTimestamp,omitempty"`
}

// attachedGPUs are those of an instance. The type is a path or an address.
type attachedGPUs struct {
	Type  string `json:"acceleratorType"`
	Count int    `json:"acceleratorCount"`
}

type attachedDisk struct {
	Boot             bool        `json:"boot"`
	AutoDelete       bool        `json:"autoDelete"`
	InitializeParams *initialize `json:"initializeParams,omitempty"`
}

type initialize struct {
	SourceImage string            `json:"sourceImage"`
	DiskSizeGb  int64             `json:"diskSizeGb,string"`
	DiskType    string            `json:"diskType"`
	Labels      map[string]string `json:"labels,omitempty"`
}

type nic struct {
	Subnetwork    string         `json:"subnetwork,omitempty"`
	NetworkIP     string         `json:"networkIP,omitempty"`
	AccessConfigs []accessConfig `json:"accessConfigs,omitempty"`
}

type accessConfig struct {
	Name  string `json:"name,omitempty"`
	Type  string `json:"type,omitempty"`
	NatIP string `json:"natIP,omitempty"`
}

type metadata struct {
	Items []metadataItem `json:"items,omitempty"`
}

type metadataItem struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

type scheduling struct {
	ProvisioningModel         string    `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string    `json:"instanceTerminationAction,omitempty"`
	AutomaticRestart          *bool     `json:"automaticRestart,omitempty"`
	OnHostMaintenance         string    `json:"onHostMaintenance,omitempty"`
	MaxRunDuration            *duration `json:"maxRunDuration,omitempty"`
}

type duration struct {
	Seconds int64 `json:"seconds,string"`
}

type setLabels struct {
	Labels           map[string]string `json:"labels"`
	LabelFingerprint string            `json:"labelFingerprint"`
}

// operation is what a call that changes something answers. It may still fail.
type operation struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Error  *struct {
		Errors []operationError `json:"errors"`
	} `json:"error"`
	HTTPErrorStatusCode int `json:"httpErrorStatusCode"`
}

type operationError struct {
	Code    string        `json:"code"`
	Message string        `json:"message"`
	Details []errorDetail `json:"errorDetails"`
}

type errorDetail struct {
	QuotaInfo *struct {
		MetricName string `json:"metricName"`
	} `json:"quotaInfo"`
}

// aggregated is a page of a list of all zones or regions.
type aggregated[T any] struct {
	Items         map[string]T `json:"items"`
	NextPageToken string       `json:"nextPageToken"`
	Unreachables  []string     `json:"unreachables"`
	Warning       *warning     `json:"warning"`
}

type warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// missing reports whether a warning says that something was not looked at. Google warns of every
// zone that has nothing, too.
func (w *warning) missing() bool { return w != nil && w.Code != "NO_RESULTS_ON_PAGE" }

type scopedInstances struct {
	Instances []instance `json:"instances"`
	Warning   *warning   `json:"warning"`
}

type scopedDisks struct {
	Disks   []thing  `json:"disks"`
	Warning *warning `json:"warning"`
}

type scopedAddresses struct {
	Addresses []thing  `json:"addresses"`
	Warning   *warning `json:"warning"`
}

// thing is a disk or an address.
type thing struct {
	Name              string            `json:"name"`
	Labels            map[string]string `json:"labels"`
	Users             []string          `json:"users"`
	CreationTimestamp string            `json:"creationTimestamp"`
}

type machineType struct {
	Name         string            `json:"name"`
	GuestCPUs    int               `json:"guestCpus"`
	MemoryMb     int64             `json:"memoryMb"`
	IsSharedCPU  bool              `json:"isSharedCpu"`
	Architecture string            `json:"architecture"`
	Accelerators []typeAccelerator `json:"accelerators"`
	Deprecated   *struct {
		State string `json:"state"`
	} `json:"deprecated"`
}

// typeAccelerator is what a machine type has of its own.
type typeAccelerator struct {
	Type  string `json:"guestAcceleratorType"`
	Count int    `json:"guestAcceleratorCount"`
}

// acceleratorType is what can be attached in a zone, and how many of it to one instance.
type acceleratorType struct {
	Name string `json:"name"`
	Most int    `json:"maximumCardsPerInstance"`
}

type acceleratorTypeList struct {
	Items         []acceleratorType `json:"items"`
	NextPageToken string            `json:"nextPageToken"`
}

type machineTypeList struct {
	Items         []machineType `json:"items"`
	NextPageToken string        `json:"nextPageToken"`
}

type region struct {
	Quotas []struct {
		Metric string  `json:"metric"`
		Limit  float64 `json:"limit"`
		Usage  float64 `json:"usage"`
	} `json:"quotas"`
}

type guestAttributes struct {
	QueryValue struct {
		Items []struct {
			Namespace string `json:"namespace"`
			Key       string `json:"key"`
			Value     string `json:"value"`
		} `json:"items"`
	} `json:"queryValue"`
}

// last is the last part of a path: answers name zones and types by their whole address.
func last(address string) string { return address[strings.LastIndexByte(address, '/')+1:] }
