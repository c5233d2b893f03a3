"""Folders of Hugging Face transformers with random weights, and with tokenizers that are learned from a few lines."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece

from support.small_language import TEST

_SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4}
_SIZES |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64}


def learn_spm(lines: list[str], path: Path, size: int, kind: str = "unigram", **ids: int) -> list[str]:
    """Learn a SentencePiece model with SentencePiece's own normalization and ids, as other programs do."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **ids,
    )
    path.write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [processor.id_to_piece(index) for index in range(len(processor))]


def train_briefly(model: Any, pairs: list[tuple[list[int], list[int]]], steps: int) -> None:
    """Train so long that translations end: a random model writes forever. `pairs` are ids, end marks included."""
    import torch

    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.1)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, fused=True)
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    for step in range(steps):
        batch = pairs[16 * (step % 20) : 16 * (step % 20) + 16]
        src, out = (
            torch.tensor([side + [pad] * (max(map(len, sides)) - len(side)) for side in sides])
            for sides in zip(*batch, strict=True)
        )
        tgt = torch.cat([torch.full((len(out), 1), start), out[:, :-1]], 1)
        logits = model(input_ids=src, attention_mask=(src != pad).long(), decoder_input_ids=tgt).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), out.flatten(), ignore_index=pad).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for parameter in model.parameters():  # no bias stays 0, and no norm 1
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn_like(parameter)


def save(model: Any, folder: Path) -> None:
    """Save as the hub has such models: with an id to start from, and <pad> forbidden."""
    import transformers

    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    ids = {name: getattr(model.config, name) for name in names}
    bad_words = [[model.config.pad_token_id]]
    model.generation_config = transformers.GenerationConfig(**ids, num_beams=4, bad_words_ids=bad_words, max_length=64)
    model.save_pretrained(folder)


def ids_of(lines: list[str], path: Path, table: dict[str, int]) -> list[list[int]]:
    """The ids of lines by the table, end mark included."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    pieces = processor.encode(lines, out_type=str)
    return [[*(table.get(piece, table["<unk>"]) for piece in line), table["</s>"]] for line in pieces]


def marian_folder(folder: Path, languages: tuple[str, ...] = (), steps: int = 40, **changes: Any) -> Any:
    """A MarianMT model as OPUS-MT has them: two SentencePiece models, one table of ids, and a decoder that starts with
    the last piece, <pad>. Returns the model."""
    import transformers

    folder.mkdir(parents=True)
    texts = {"source": [source for source, _ in TEST], "target": [target for _, target in TEST]}
    sides = [learn_spm(lines, folder / f"{side}.spm", 120) for side, lines in texts.items()]
    # Marian's table lacks some pieces of SentencePiece, because they did not occur in training.
    pieces = ["</s>", "<unk>", *sides[1][3:-4], *sides[0][3:-4], *(f">>{code}<<" for code in languages), "<pad>"]
    table = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
    settings = {"source_lang": "en", "target_lang": "fr", "tokenizer_class": "MarianTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    pad = table["<pad>"]
    config = {**_SIZES, "activation_function": "swish", "scale_embedding": True, "vocab_size": len(table)}
    config |= {"pad_token_id": pad, "eos_token_id": 0, "bos_token_id": 0, "decoder_start_token_id": pad}
    config |= {"forced_eos_token_id": None, "share_encoder_decoder_embeddings": True, **changes}
    model = transformers.MarianMTModel(transformers.MarianConfig(**config)).eval()
    sources, targets = (ids_of(lines, folder / f"{side}.spm", table) for side, lines in texts.items())
    train_briefly(model, list(zip(sources, targets, strict=True)), steps)
    model.final_logits_bias.normal_(std=0.3)
    save(model, folder)
    return model


def multilingual_folder(folder: Path, kind: str, steps: int = 40) -> tuple[Any, dict[str, int]]:
    """A model of many languages: "nllb", "m2m_100" or "mbart". Returns the model and its table of ids.

    transformers 5 reads the languages of M2M-100 and mBART-50 from its own lists. NLLB's are read from a file.
    """
    import transformers

    folder.mkdir(parents=True)
    lines = [text for pair in TEST for text in pair]
    pieces = learn_spm(lines, folder / "sentencepiece.bpe.model", 150, "bpe" if kind == "nllb" else "unigram")
    table = {piece: index for index, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", *pieces[3:]))}
    if kind == "m2m_100":
        (folder / "vocab.json").write_text(json.dumps(table), encoding="utf-8")
        tokenizer = transformers.M2M100Tokenizer.from_pretrained(folder)
        codes = list(tokenizer.lang_token_to_id)
    elif kind == "mbart":
        tokenizer = transformers.MBart50Tokenizer.from_pretrained(folder)
        codes = [*tokenizer.lang_code_to_id, "<mask>"]
    else:
        codes = ["ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn", "<mask>"]
    table |= {code: len(table) + number for number, code in enumerate(codes)}
    classes = {"m2m_100": "M2M100Tokenizer", "mbart": "MBart50Tokenizer", "nllb": "NllbTokenizer"}
    settings: dict[str, Any] = {"tokenizer_class": classes[kind]}
    if kind == "m2m_100":
        settings["language_codes"] = "m2m100"
    else:
        (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": codes}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {**_SIZES, "scale_embedding": True, "activation_function": "gelu" if kind == "mbart" else "relu"}
    config |= {"vocab_size": len(table) + 2}  # NLLB and M2M-100 have rows that no piece uses
    config |= {"pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
    if kind == "mbart":
        model = transformers.MBartForConditionalGeneration(transformers.MBartConfig(**config)).eval()
    else:
        model = transformers.M2M100ForConditionalGeneration(transformers.M2M100Config(**config)).eval()
    names = {"m2m_100": ("__en__", "__fr__"), "mbart": ("en_XX", "fr_XX"), "nllb": ("eng_Latn", "fra_Latn")}[kind]
    sources, targets = (
        [
            [table[names[side]], *ids]
            for ids in ids_of([pair[side] for pair in TEST], folder / "sentencepiece.bpe.model", table)
        ]
        for side in (0, 1)
    )
    train_briefly(model, list(zip(sources, targets, strict=True)), steps)
    save(model, folder)
    return model, table
