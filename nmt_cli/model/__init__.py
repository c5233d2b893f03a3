"""The models behind `nmt train` and `nmt translate`: one contract (base.py), one file per family, one `build_model`.

Import from the files themselves; this one stays empty, so that a light module does not pull in torch by accident.
"""
