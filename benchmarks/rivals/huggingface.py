"""MarianMT of Hugging Face transformers. There is no training command, so a short script trains."""

from __future__ import annotations

import json
from pathlib import Path

from rivals.task import LINES_OF_A_BATCH, SAVE_EVERY, Rival, rates, report_every, run_for

# Pieces get the ids of a table. </s> is 0 and <pad> the last one, as in OPUS-MT.
TRAIN = """
import json, random, sys, time
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianConfig, MarianMTModel
table, source, target, folder, tokens, report, save = sys.argv[1:]
table = json.load(open(table, encoding="utf-8"))
tokens, report, save, pad = int(tokens), int(report), int(save), len(table)
sides = [[[table.get(piece, 1) for piece in line.split()][:99] + [0] for line in open(file, encoding="utf-8")]
         for file in (source, target)]
rows = sorted(zip(*sides), key=lambda pair: (max(map(len, pair)), len(pair[0])))
batches = [[]]
for pair in rows:
    if (len(batches[-1]) + 1) * max(map(len, pair)) > tokens:
        batches.append([])
    batches[-1].append(pair)
config = MarianConfig(vocab_size=pad + 1, d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
                      decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, dropout=0.1,
                      attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
                      max_position_embeddings=128, pad_token_id=pad, eos_token_id=0, bos_token_id=0,
                      decoder_start_token_id=pad, forced_eos_token_id=None)
model = MarianMTModel(config).train()
adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda n: min((n + 1) / 400, (400 / (n + 1)) ** 0.5))
step = seen = 0
began = time.perf_counter()
while True:
    random.shuffle(batches)
    for batch in batches:
        src, tgt = (pad_sequence([torch.tensor(ids) for ids in side], True, pad) for side in zip(*batch))
        start = torch.cat([torch.full((len(tgt), 1), pad), tgt[:, :-1]], 1)
        logits = model(input_ids=src, attention_mask=src != pad, decoder_input_ids=start).logits
        cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=pad, label_smoothing=0.1).backward()
        adam.step(), adam.zero_grad(), schedule.step()
        step, seen = step + 1, seen + int((tgt != pad).sum())
        if step % report == 0:
            print(f"step {step}: {seen / (time.perf_counter() - began):.0f} target tokens/s", flush=True)
            seen, began = 0, time.perf_counter()
        if save and step % save == 0:
            model.save_pretrained(folder)
"""
TRANSLATE = """
import json, sys
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianMTModel
table, folder, source, out, beam, size = sys.argv[1:]
table = json.load(open(table, encoding="utf-8"))
pieces, pad, size = list(table), len(table), int(size)
model = MarianMTModel.from_pretrained(folder).eval()
lines = [torch.tensor([table.get(p, 1) for p in line.split()] + [0]) for line in open(source, encoding="utf-8")]
order = sorted(range(len(lines)), key=lambda n: len(lines[n]))
found = {}
for first in range(0, len(order), size):
    chosen = order[first : first + size]
    src = pad_sequence([lines[n] for n in chosen], True, pad)
    ids = model.generate(src, attention_mask=src != pad, num_beams=int(beam), max_new_tokens=100, do_sample=False)
    for n, row in zip(chosen, ids.tolist()):
        found[n] = " ".join(pieces[i] for i in row if 1 < i < pad)
with open(out, "w", encoding="utf-8") as stream:
    stream.writelines(found[n] + "\\n" for n in range(len(lines)))
"""


class HuggingFace(Rival):
    name = "HF MarianMT"
    packages = ("transformers",)

    def configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        table = {piece: number for number, piece in enumerate(["</s>", "<unk>", *self.task.pieces])}
        (self.folder / "table.json").write_text(json.dumps(table, ensure_ascii=False), encoding="utf-8")

    def config_lines(self) -> int:
        return len(TRAIN.strip().split("\n"))

    def train(self, tokens: int, seconds: float, save: bool) -> list[float]:
        train = self.task.text("train")
        report = str(report_every(tokens))
        words = [f"{self.folder}/table.json", f"{train}.en", f"{train}.de", f"{self.folder}/model", str(tokens)]
        command = [str(self.bin / "python"), "-c", TRAIN, *words, report, str(SAVE_EVERY if save else 0)]
        return rates(r"([\d.]+) target tokens/s", run_for(command, seconds))

    def translate(self, source: Path, out: Path, beam: int) -> list[str]:
        words = [f"{self.folder}/table.json", f"{self.folder}/model", str(source), str(out), str(beam)]
        return [str(self.bin / "python"), "-c", TRANSLATE, *words, str(LINES_OF_A_BATCH)]

    def help(self) -> list[str]:
        return [str(self.bin / "python"), "-c", "from transformers.cli.transformers import main; main()", "--help"]
