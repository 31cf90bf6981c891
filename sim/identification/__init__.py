"""From a station's takes to its twin: `drives` fits the arm's drives, `scene` what pictures show."""
