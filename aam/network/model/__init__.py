"""Network: attention, encoders and heads, on tensors alone.

Shape suffixes of tensor names:
    U distinct ASVs of a batch    L nucleotides of a sequence    T tokens (patches) of a sequence
    B samples of a batch          S ASVs of the largest sample   D embedding width
    H attention heads             E width of one head            P nucleotides of a patch
    C outputs of a head           N any leading batch dimension  K any set dimension
"""
