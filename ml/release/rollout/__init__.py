"""From a declared version to a serving one: plan, apply, roll back."""
