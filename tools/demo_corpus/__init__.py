"""The generator of the demo corpus: English-French sentences from a small grammar.

    cd tools && python -m demo_corpus        # writes nmt_cli/demo/*.xz

corpus.py draws sentences, grammar.py joins words, lexicon.py lists the words. The package ships only the result.
"""
