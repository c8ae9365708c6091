"""Golden runs: the same small computation on two stacks, compared stage by stage.

    random_numbers ──► case ──► measure ──► folder (safetensors, golden.json)
                                   └───────► compare ◄──┘

Fixed weights and inputs that depend on no random generator of torch; the real network, the real
losses and the real optimizer.
"""
