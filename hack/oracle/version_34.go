//go:build k8s34

package main

import "errors"

func restrictAllocators(variant string) error {
	if variant != "" {
		return errors.New("v0.34 cannot be told which allocator to use")
	}
	return nil
}

// isNodeError: in v0.34 every error ends the search.
func isNodeError(error) bool { return false }
