package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// outcome is what one call of Allocate came to. ShareIDs are random, so each is replaced by sharedID.
type outcome struct {
	Fits        bool                           `json:"fits"`
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Error       string                         `json:"error,omitempty"`
	// Scope of Error: "pod" ends the search on all nodes, "node" only here, "panic" is a crash.
	Scope string `json:"scope,omitempty"`
	// TimedOut: the answer is unknown.
	TimedOut bool `json:"timedOut,omitempty"`
}

// nodeAnswer has the effort of the fastest sample.
type nodeAnswer struct {
	Node string `json:"node"`
	outcome
	// Others are outcomes of further samples that differ from the first one.
	Others      []outcome `json:"others,omitempty"`
	Steps       int64     `json:"steps"`
	Nanoseconds int64     `json:"nanoseconds"`
}

type solution struct {
	Nodes []nodeAnswer `json:"nodes"`
}

var sharedID = types.UID("00000000-0000-4000-8000-000000000000")

// As many entries as the scheduler has, one cache per set of CEL features.
var celCaches = map[cel.Features]*cel.Cache{}

func solve(p *problem) any {
	features, err := featuresOf(p.Features)
	if err != nil {
		return failure{err.Error()}
	}
	c, err := read(p)
	if err != nil {
		return failure{err.Error()}
	}
	celFeatures := celFeaturesOf(features)
	if celCaches[celFeatures] == nil {
		celCaches[celFeatures] = cel.NewCache(10, celFeatures)
	}
	timeout := 10 * time.Second
	if p.TimeoutMs > 0 {
		timeout = time.Duration(p.TimeoutMs) * time.Millisecond
	}
	state := stateOf(c.held, features)
	answers := make([]nodeAnswer, 0, len(c.nodes))
	for _, node := range c.nodes {
		ask := func() (outcome, int64, int64) {
			return allocate(c, node, features, state, celCaches[celFeatures], timeout)
		}
		first, steps, nanoseconds := ask()
		known := map[string]bool{fingerprint(first): true}
		entry := nodeAnswer{Node: node.Name, outcome: first, Steps: steps, Nanoseconds: nanoseconds}
		started := time.Now()
		for i := 1; i < p.Samples && !first.TimedOut; i++ {
			if time.Since(started) > 5*timeout {
				entry.Others = append(entry.Others, outcome{Error: "no time for more samples", TimedOut: true})
				break
			}
			reorder(c.slices, i%2 == 0)
			next, steps, nanoseconds := ask()
			if nanoseconds < entry.Nanoseconds {
				entry.Steps, entry.Nanoseconds = steps, nanoseconds
			}
			if print := fingerprint(next); !known[print] {
				known[print] = true
				entry.Others = append(entry.Others, next)
			}
		}
		answers = append(answers, entry)
	}
	return solution{answers}
}

// allocate makes a new Allocator, as the scheduler does for every pod, and asks it about one node.
func allocate(c *cluster, node *v1.Node, features structured.Features, state structured.AllocatedState,
	celCache *cel.Cache, timeout time.Duration) (result outcome, steps, nanoseconds int64) {
	defer func() {
		if cause := recover(); cause != nil {
			result = outcome{Error: fmt.Sprintf("panic: %v", cause), Scope: "panic"}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	start := time.Now()
	allocator, err := structured.NewAllocator(ctx, features, state, c.classes, c.slices, celCache)
	if err != nil {
		return outcome{Error: err.Error(), Scope: "pod"}, 0, 0
	}
	allocations, err := allocator.Allocate(ctx, node, c.claims)
	nanoseconds = time.Since(start).Nanoseconds()
	steps = stepsOf(allocator)
	switch {
	case err == nil && (allocations != nil || len(c.claims) == 0):
		for i := range allocations {
			normalise(&allocations[i])
		}
		return outcome{Fits: true, Allocations: allocations}, steps, nanoseconds
	case err == nil:
		return outcome{}, steps, nanoseconds
	case ctx.Err() != nil:
		return outcome{Error: err.Error(), TimedOut: true}, steps, nanoseconds
	case isNodeError(err):
		return outcome{Error: err.Error(), Scope: "node"}, steps, nanoseconds
	}
	return outcome{Error: err.Error(), Scope: "pod"}, steps, nanoseconds
}

// reorder gives slices another order, which the unordered cache of a scheduler might have as well. Variants that do
// not sort take pools from a Go map, and a small one is walked in the order of insertion from a random start: with
// sorted slices, the sorted order of pools is among those seen.
func reorder(slices []*resourceapi.ResourceSlice, sorted bool) {
	if !sorted {
		rand.Shuffle(len(slices), func(i, j int) { slices[i], slices[j] = slices[j], slices[i] })
		return
	}
	sort.Slice(slices, func(i, j int) bool { return sortKey(slices[i]) < sortKey(slices[j]) })
}

func sortKey(slice *resourceapi.ResourceSlice) string {
	return slice.Spec.Driver + "\x00" + slice.Spec.Pool.Name + "\x00" + slice.Name
}

func normalise(allocation *resourceapi.AllocationResult) {
	for i := range allocation.Devices.Results {
		if allocation.Devices.Results[i].ShareID != nil {
			allocation.Devices.Results[i].ShareID = &sharedID
		}
	}
}

// stateOf does with allocated claims what the scheduler's plugin does.
func stateOf(held []*resourceapi.ResourceClaim, features structured.Features) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range held {
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if features.ConsumableCapacity && result.ShareID != nil {
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
				continue
			}
			state.AllocatedDevices.Insert(id)
		}
	}
	return state
}

// celFeaturesOf goes by field name, because each version has other fields.
func celFeaturesOf(features structured.Features) (result cel.Features) {
	from := reflect.ValueOf(features)
	to := reflect.ValueOf(&result).Elem()
	for i := range to.NumField() {
		name := to.Type().Field(i).Name
		if field := from.FieldByName(name[len("Enable"):]); field.IsValid() {
			to.Field(i).SetBool(field.Bool())
		}
	}
	return result
}

// stepsOf is the allocator's own count of search steps. The method belongs to an internal interface.
func stepsOf(allocator structured.Allocator) int64 {
	method := reflect.ValueOf(allocator).MethodByName("GetStats")
	if !method.IsValid() {
		return 0
	}
	statistics := reflect.Indirect(method.Call(nil)[0])
	if !statistics.IsValid() {
		return 0
	}
	return statistics.FieldByName("NumAllocateOneInvocations").Int()
}

func fingerprint(result outcome) string {
	text, err := json.Marshal(result)
	if err != nil {
		return fmt.Sprint(errors.Unwrap(err))
	}
	return string(text)
}
