"""Program that logs training steps, for tests of `aam tune`.

    python step_program.py [--cost SECONDS] [--fault FAULT]

It fits a line by gradient descent on seeded data, and logs `--cost` as the seconds of each step,
so that no test depends on the speed of the machine. Faults:
`gradient` scales the gradient by 0.9, `nan` makes the loss of step 12 NaN, `hang`, `memory`,
`rubbish`, `half`, `silent` end the log at step 10 each in its way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cost", type=float, default=0.01)
    parser.add_argument("--fault", default="none")
    given = parser.parse_args()
    if given.fault == "silent":
        return
    steps = int(os.environ["AAM_STEPS"])
    noise = float(os.environ["AAM_WEIGHT_NOISE"])
    moved = random.Random(int(os.environ["AAM_WEIGHT_NOISE_SEED"])).gauss(0, 1)
    weight, data = 1 + noise * moved, random.Random(7)
    with open(os.environ["AAM_STEP_LOG"], "w", buffering=1) as log:
        for step in range(steps):
            if step == 10:
                fail(given.fault, log)
            error = weight - 3 + data.gauss(0, 0.1)
            loss = error**2 + 1
            weight -= 0.01 * error * (0.9 if given.fault == "gradient" else 1)
            if given.fault == "nan" and step == 12:
                loss = float("nan")
            cost = {"seconds": given.cost, "cpu_seconds": given.cost}
            print(json.dumps({"step": step, "loss": loss, "samples": 8, **cost}), file=log)


def fail(fault: str, log: object) -> None:
    """End in the way that `fault` names, or return."""
    if fault == "hang":
        time.sleep(600)
    if fault == "memory":
        sys.exit("RuntimeError: HIP out of memory. Tried to allocate 2.00 GiB")
    if fault == "rubbish":
        print("epoch 3: loss = 0.2", file=log)  # type: ignore[call-overload]
    if fault == "half":
        sys.exit("ValueError: the 11th batch is broken")


if __name__ == "__main__":
    main()
