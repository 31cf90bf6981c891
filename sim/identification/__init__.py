"""From a station's takes to its twin: `drives` fits its drives, `scene` what pictures show."""
