"""Speed and memory of loopguard, as ratios measured in one process: ``python -m benchmarks``."""
