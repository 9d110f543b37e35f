"""The command hack/bench: what Tangram costs, measured beside a reference in the same run."""
