"""Speed and memory, measured as ratios within one run. `python -m bench --help` lists the parts."""
