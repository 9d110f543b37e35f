//go:build !k8s34

package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
)

func restrictAllocators(variant string) error {
	if variant != "" {
		structured.EnableAllocators(variant)
	}
	return nil
}

func isNodeError(err error) bool {
	return errors.Is(err, structured.ErrFailedAllocationOnNode)
}
