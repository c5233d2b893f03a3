"""The demo corpus: English-French sentences from a small grammar, for `nmt demo`."""
