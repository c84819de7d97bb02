# SPDX-License-Identifier: Apache-2.0
"""Continues a text with a model, printing it as it comes: generate.py MODEL.gguf [TEXT]"""

import sys

import ops_transformer as ops


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    text = sys.argv[2] if len(sys.argv) > 2 else "The capital of France is"
    model = ops.Model.load(sys.argv[1])
    print(text, end="", flush=True)
    for piece in model.generate(text, max_tokens=32, temperature=0):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
