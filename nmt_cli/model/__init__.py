"""The models behind `nmt train` and `nmt translate`: one contract (base.py), one file per family, one `build_model`.

Import from the files themselves. This file imports nothing, so that importing a light module does not load torch.
"""
