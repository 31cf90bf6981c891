"""From a station's takes to its twin: `drives` fits the arm's drives, `arm` simulates them."""
