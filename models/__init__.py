"""A base model: where it comes from, which one it is, and its adapter.

`source` finds it, `fingerprint` tells it from others, `loading` opens it, `lora` attaches, reads
and writes the factors, `files` and `examples` turn text into tokens, `evaluation` measures it,
`export` writes a tuned model that works without fedlora. Import these modules: the package itself
is light, so that the command line stays quick.
"""
