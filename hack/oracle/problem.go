package main

import (
	"encoding/json"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"
)

// problem is a cluster with claims. The unallocated claims are one group, in the order given; the allocated ones are
// held. Each node is asked on its own: the claims of the group, on this node, with the same state.
type problem struct {
	// Items are Kubernetes objects of the kinds ResourceSlice, DeviceClass, ResourceClaim and Node, as in a v1 List.
	Items []json.RawMessage `json:"items"`
	// Node restricts the question to one node.
	Node string `json:"node"`
	// Features are fields of structured.Features that are to be true.
	Features []string `json:"features"`
	// TimeoutMs per node, 0 is 10 s (as in the scheduler).
	TimeoutMs int64 `json:"timeoutMs"`
	// Samples > 1 asks that many times, all but the first with the slices in another order, and returns all
	// different outcomes; after five times the time-out it stops.
	Samples int `json:"samples"`
}

// cluster is what the allocator sees.
type cluster struct {
	slices  []*resourceapi.ResourceSlice
	classes classes
	held    []*resourceapi.ResourceClaim
	claims  []*resourceapi.ResourceClaim
	nodes   []*v1.Node
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(c))
	for _, class := range c {
		all = append(all, class)
	}
	return all, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, fmt.Errorf("deviceclass.resource.k8s.io %q not found", name)
}

func read(p *problem) (*cluster, error) {
	c := &cluster{classes: classes{}}
	for i, raw := range p.Items {
		var meta struct {
			Kind string `json:"kind"`
		}
		if err := json.Unmarshal(raw, &meta); err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
		var err error
		switch meta.Kind {
		case "ResourceSlice":
			var slice resourceapi.ResourceSlice
			err = stored(raw, &slice)
			c.slices = append(c.slices, &slice)
		case "DeviceClass":
			var class resourceapi.DeviceClass
			err = json.Unmarshal(raw, &class)
			c.classes[class.Name] = &class
		case "ResourceClaim":
			var claim resourceapi.ResourceClaim
			err = stored(raw, &claim)
			setDefaults(&claim)
			if claim.Status.Allocation != nil {
				c.held = append(c.held, &claim)
			} else {
				c.claims = append(c.claims, &claim)
			}
		case "Node":
			var node v1.Node
			err = json.Unmarshal(raw, &node)
			if p.Node == "" || p.Node == node.Name {
				c.nodes = append(c.nodes, &node)
			}
		default:
			err = fmt.Errorf("kind %q is not for the allocator", meta.Kind)
		}
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
	}
	if p.Node != "" && len(c.nodes) == 0 {
		node := &v1.Node{}
		node.Name = p.Node
		c.nodes = append(c.nodes, node)
	}
	return c, nil
}

// stored reads an object as it comes back from an API server: quantities are canonical, 1.5Gi is 1536Mi. As written,
// such a quantity is a big decimal, whose copies share memory, and the allocator changes a request by adding to a copy.
func stored(raw json.RawMessage, object any) error {
	if err := json.Unmarshal(raw, object); err != nil {
		return err
	}
	canonical, err := json.Marshal(object)
	if err != nil {
		return err
	}
	fresh := reflect.ValueOf(object).Elem()
	fresh.SetZero()
	return json.Unmarshal(canonical, object)
}

// setDefaults does what the API server does before a claim reaches the scheduler.
func setDefaults(claim *resourceapi.ResourceClaim) {
	exact := resourceapi.DeviceAllocationModeExactCount
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			if exactly.AllocationMode == "" {
				exactly.AllocationMode = exact
			}
			if exactly.AllocationMode == exact && exactly.Count == 0 {
				exactly.Count = 1
			}
			setTolerationDefaults(exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			sub := &request.FirstAvailable[j]
			if sub.AllocationMode == "" {
				sub.AllocationMode = exact
			}
			if sub.AllocationMode == exact && sub.Count == 0 {
				sub.Count = 1
			}
			setTolerationDefaults(sub.Tolerations)
		}
	}
}

func setTolerationDefaults(tolerations []resourceapi.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}

// featuresOf goes by field name, because each version has other fields.
func featuresOf(names []string) (structured.Features, error) {
	var features structured.Features
	fields := reflect.ValueOf(&features).Elem()
	for _, name := range names {
		field := fields.FieldByName(name)
		if !field.IsValid() || field.Kind() != reflect.Bool {
			return features, fmt.Errorf("this version has no feature %q", name)
		}
		field.SetBool(true)
	}
	return features, nil
}
