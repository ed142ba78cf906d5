"""The harness that judges parasim against measurements: named cases, a tolerance and an exit code."""
