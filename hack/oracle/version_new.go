//go:build !k8s34

package main

import (
	"errors"

	"k8s.io/dynamic-resource-allocation/structured"
)

func isNodeError(err error) bool {
	return errors.Is(err, structured.ErrFailedAllocationOnNode)
}
