"""What plain commands, readings and pictures show by themselves: no reference, label or model."""
