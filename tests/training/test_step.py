"""Updates of the weights: memory that runs out, losses that are not finite, clipping, EMA, the scale of fp16."""

from __future__ import annotations

import math
import signal
from contextlib import contextmanager, nullcontext
from itertools import count

import pytest
import torch
from safetensors.torch import load_file
from support.toy_runs import assert_same_weights, sets, steps_saved

from nmt_cli.data.batches import BatchStream, ParallelData, Position
from nmt_cli.errors import NmtError
from nmt_cli.model.build import build_model
from nmt_cli.model.device import Compute
from nmt_cli.recipe.load import find_recipe, load_recipe
from nmt_cli.recipe.schema import Train, Transformer
from nmt_cli.store.checkpoint import State
from nmt_cli.store.folders import RunFolder
from nmt_cli.store.log import End, Note, Valid
from nmt_cli.text.vocab import load_vocab
from nmt_cli.training.loss import TrainingLoss
from nmt_cli.training.precision import _trial
from nmt_cli.training.session import train
from nmt_cli.training.step import Updater
from nmt_cli.training.trainer import AlreadyFinished, Step
from nmt_cli.training.validation import evaluating

CPU = torch.device("cpu")


class Updates:
    """Makes updates of a small model on the toy corpus. `loss` may replace its loss function."""

    def __init__(self, prepared, settings: Train, dropout: float = 0.0, precision: str = "fp32", state=None):
        vocab = load_vocab(prepared / "data/vocab")
        data = ParallelData(prepared / "data", "train", vocab)
        self.stream = BatchStream(data, 128, 1, Position())
        torch.manual_seed(1)
        config = Transformer(dim=32, heads=2, ff=64, encoder_layers=1, decoder_layers=1, dropout=dropout)
        self.model = build_model(config, *vocab.sizes)
        self.notes: list[str] = []
        self.state = state or State()
        self.objective = TrainingLoss(self.model, settings).train()
        compute = Compute(CPU, precision, "")
        self.updater = Updater(self.model, self.loss, settings, compute, self.state, self.notes.append)

    def loss(self, src, tgt_in, tgt_out):
        return self.objective(src, tgt_in, tgt_out)

    def update(self, rate: float = 1e-3, micro_batches: int = 1):
        batches = [(micro.read(), seed) for seed, micro in enumerate(self.stream.take(micro_batches))]
        self.state.step += 1
        return self.updater.read(self.updater.update(batches, sum(batch.tokens for batch, _ in batches), rate))

    def weights(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten().clone() for parameter in self.model.parameters()])


def test_out_of_memory_halves_the_micro_batch_with_the_same_result(prepared):
    def weights(most_rows: int) -> dict:
        updates, calls = Updates(prepared, Train()), count()

        def limited(src, tgt_in, tgt_out):
            # The first micro-batch passes; its gradient must not count twice.
            if next(calls) and len(src) > most_rows:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return updates.objective(src, tgt_in, tgt_out)

        updates.updater.loss = limited
        for _ in range(4):
            updates.update(micro_batches=2)
        assert bool(updates.notes) == (most_rows < 100)
        assert all("out of memory" in note for note in updates.notes)
        return updates.model.state_dict()

    assert_same_weights(weights(100), weights(4), 1e-5)


def test_out_of_memory_with_one_row_is_an_error(prepared):
    updates = Updates(prepared, Train())

    def never(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    updates.updater.loss = never
    with pytest.raises(NmtError, match="even with one sentence at a time"):
        updates.update()


class Sending(list):
    """Stands for DistributedDataParallel. Notes which passes accumulate and when gradients are sent afterwards."""

    @contextmanager
    def no_sync(self):
        self.append("accumulated")
        yield

    def __call__(self):
        self.append("sent")
        return (torch.zeros((), requires_grad=True),)


def test_memory_that_runs_out_while_gradients_are_sent_is_an_error(prepared):
    """The first two updates send their gradients afterwards: the memory of such an update is not known yet."""
    updates = Updates(prepared, Train())
    updates.updater.shared = passes = Sending()
    batches = updates.stream.take(1)
    updates.stream.take = lambda count: batches
    updates.update()
    updates.update()
    assert passes == ["accumulated", "sent"] * 2
    updates.update()
    assert len(passes) == 4

    def fail(gradient):
        raise torch.OutOfMemoryError("CUDA out of memory")

    next(updates.model.parameters()).register_hook(fail)
    with pytest.raises(NmtError, match="memory ran out in a pass that all processes make together"):
        updates.update()


def test_memory_that_runs_out_in_a_sharded_model_is_an_error(prepared):
    updates = Updates(prepared, Train())

    def fail(*batch):
        raise torch.OutOfMemoryError("CUDA out of memory")

    updates.updater.sharded, updates.updater.loss = True, fail
    with pytest.raises(NmtError, match="memory ran out in a pass that all processes make together"):
        updates.update()


def test_other_errors_are_not_taken_for_lack_of_memory(prepared):
    updates = Updates(prepared, Train())

    def broken(*args):
        raise RuntimeError("a bug")

    updates.updater.loss = broken
    with pytest.raises(RuntimeError, match="a bug"):
        updates.update()


@pytest.fixture
def spoil_loss(monkeypatch):
    """spoil_loss(spoil): the n-th training loss, counted from 1, is multiplied by spoil(n, model)."""

    def patch(spoil):
        plain, calls = TrainingLoss.forward, count(1)

        def forward(self, *batch):
            factor = spoil(next(calls), self.model) if self.training else 1.0
            loss, nll, tokens = plain(self, *batch)
            return loss * factor, nll, tokens

        monkeypatch.setattr(TrainingLoss, "forward", forward)

    return patch


def test_non_finite_updates_are_skipped_and_counted(train_toy, spoil_loss, tmp_path):
    spoil_loss(lambda call, model: math.nan if call in (3, 5) else 1.0)
    result, events = train_toy("train.steps=12")
    assert result.reason == "12 steps"
    notes = [event.text for event in events if isinstance(event, Note) and event.text.startswith("update ")]
    assert [note.split(":")[0] for note in notes] == ["update 3 was skipped", "update 5 was skipped"]
    assert "(2 so far)" in notes[-1]
    weights = load_file(RunFolder(result.run).checkpoint(12).weights)
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_training_neither_validates_nor_ends_after_a_skipped_update(train_toy, spoil_loss):
    """The weights may have diverged. The next update whose loss is finite shows that they have not."""
    spoil_loss(lambda call, model: math.nan if call in (10, 12, 13) else 1.0)
    result, events = train_toy("train.steps=12")
    assert [event.step for event in events if isinstance(event, Valid)] == [11, 14]
    assert events[-1] == End(14, "12 steps", 0) and steps_saved(result.run) == [11, 14]
    assert RunFolder(result.run).model.exists()
    assert isinstance(train_toy("train.steps=12")[1][-1], AlreadyFinished)


@pytest.mark.parametrize("diverges", [False, True], ids=["one update is skipped", "all updates are skipped"])
def test_a_signal_after_a_skipped_update(toy, spoil_loss, tmp_path, diverges):
    def stop_at_5(event) -> None:
        if isinstance(event, Step) and event.step == 5:
            signal.raise_signal(signal.SIGTERM)

    spoil_loss(lambda call, model: math.nan if call == 5 or (diverges and call > 5) else 1.0)
    recipe = load_recipe(toy, {"train.steps": 100})
    if diverges:
        with pytest.raises(NmtError, match="was not finite 10 times in a row, up to step 14"):
            train(recipe, watch=stop_at_5)
        assert steps_saved(tmp_path / "runs/toy") == []
    else:
        assert train(recipe, watch=stop_at_5).signal == signal.SIGTERM
        assert steps_saved(tmp_path / "runs/toy") == [6]


def test_many_non_finite_updates_in_a_row_stop_with_a_reason(train_toy, spoil_loss, tmp_path):
    spoil_loss(lambda call, model: math.inf if call > 12 else 1.0)
    with pytest.raises(NmtError, match="training diverged: the loss was not finite 10 times in a row") as caught:
        train_toy("train.steps=100", f"train.out={tmp_path}/my runs/toy")
    assert "train.clip" in caught.value.hint and f"--from '{tmp_path}/my runs/toy' --out" in caught.value.hint
    last = RunFolder(tmp_path / "my runs/toy").saved_checkpoints()[-1]
    assert last.step == 10 and all(tensor.isfinite().all() for tensor in load_file(last.weights).values())


def test_weights_that_have_diverged_are_not_kept(train_toy, spoil_loss, tmp_path):
    def destroy(call, model) -> float:
        if call == 13:
            next(model.parameters()).data.fill_(math.inf)
        return 1.0

    spoil_loss(destroy)
    with pytest.raises(NmtError, match="training diverged"):
        train_toy("train.steps=40", "train.valid_every=5", "train.keep=1")
    run = RunFolder(tmp_path / "runs/toy")
    assert run.last.resolve().name == "step-10"
    kept = [load_file(folder.weights) for folder in run.saved_checkpoints()]
    assert all(tensor.isfinite().all() for weights in kept for tensor in weights.values())


def test_a_run_that_ends_while_it_diverges_is_an_error(nmt, toy, tmp_path):
    result = nmt("train", toy, *sets("train.schedule=constant", "train.lr=1e30", "train.steps=6"))
    assert result.code == 1 and result.out == b"" and "error: training diverged" in result.err
    assert "hint: lower train.lr" in result.err
    assert not (tmp_path / "runs/toy/model").exists() and steps_saved(tmp_path / "runs/toy") == []


def test_clipping_scales_the_whole_gradient(prepared):
    """Plain descent at a rate of 1 moves the weights by the gradient."""
    moved = {}
    for clip in (0.0, 0.05, 1e9):
        updates = Updates(prepared, Train(clip=clip))
        updates.updater.optimizers = [torch.optim.SGD(updates.model.parameters(), lr=0.0)]
        before = updates.weights()
        updates.update(rate=1.0)
        moved[clip] = before - updates.weights()
    assert moved[0.0].norm() > 0.1
    assert moved[0.05].norm() == pytest.approx(0.05, rel=1e-3)
    torch.testing.assert_close(moved[0.05] / 0.05, moved[0.0] / moved[0.0].norm(), atol=1e-4, rtol=0)
    torch.testing.assert_close(moved[1e9], moved[0.0])


def test_moving_average_follows_its_formula(prepared):
    updates = Updates(prepared, Train(ema=0.7))
    expected = {name: tensor.double().clone() for name, tensor in updates.model.state_dict().items()}
    for step in range(1, 6):
        updates.update(rate=1e-2)
        decay = min(0.7, (1 + step) / (10 + step))
        for name, tensor in updates.model.state_dict().items():
            expected[name] = decay * expected[name] + (1 - decay) * tensor.double()
    average = updates.updater.moving_average
    for name, tensor in average.items():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=0)
    before = {name: tensor.clone() for name, tensor in updates.model.state_dict().items()}
    with evaluating(updates.model, average):
        for name, tensor in updates.model.state_dict().items():
            torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=0)
    assert all(torch.equal(before[name], tensor) for name, tensor in updates.model.state_dict().items())


# ---------------------------------------------------------------------------------------------------------------------
# fp16 with torch.amp.GradScaler, on the CPU


@pytest.fixture
def autocast_off(monkeypatch):
    """Compute in fp32, but with the loss scale of fp16."""
    monkeypatch.setattr(Compute, "autocast", lambda self: nullcontext())


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_scale_of_fp16_does_not_change_the_weights(prepared, autocast_off, optimizer):
    """The second update is the 2000th without an overflow, and doubles the scale."""
    results = {}
    for precision in ("fp32", "fp16"):
        updates = Updates(prepared, Train(optimizer=optimizer), precision=precision)
        if precision == "fp16":
            updates.updater.scaler.load_state_dict({**updates.updater.scaler.state_dict(), "_growth_tracker": 1998})
        norms = [updates.update().gradient_norm for _ in range(3)]
        results[precision] = updates.weights(), norms
    torch.testing.assert_close(results["fp16"][0], results["fp32"][0], atol=1e-5, rtol=0)
    assert results["fp16"][1] == pytest.approx(results["fp32"][1], rel=1e-3)
    assert updates.updater.scaler.get_scale() == 2.0**17


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_gradient_that_overflows_fp16_halves_the_scale_and_is_skipped(prepared, autocast_off, optimizer):
    updates = Updates(prepared, Train(optimizer=optimizer, ema=0.9), precision="fp16")
    updates.update()
    before, average = updates.weights(), {n: t.clone() for n, t in updates.updater.moving_average.items()}
    # Only one parameter overflows: the optimizer of the others must not step either.
    parameter = next(parameter for parameter in updates.model.parameters() if parameter.dim() == 2)
    hook = parameter.register_hook(lambda gradient: gradient * math.inf)
    assert not updates.update().applied
    hook.remove()
    assert updates.updater.scaler.get_scale() == 2.0**15 and updates.state.skipped == 0 and not updates.notes
    torch.testing.assert_close(updates.weights(), before, atol=0, rtol=0)
    assert all(torch.equal(average[name], tensor) for name, tensor in updates.updater.moving_average.items())
    assert updates.update().applied and not torch.equal(updates.weights(), before)


def test_a_loss_that_is_not_finite_is_counted_in_fp16_too(prepared, autocast_off):
    updates = Updates(prepared, Train(), precision="fp16")
    updates.updater.loss = lambda *batch: tuple(part * math.nan for part in updates.objective(*batch))
    assert not updates.update().applied
    assert updates.state.skipped == 1 and updates.updater.skipped_in_a_row == 1 and len(updates.notes) == 1


def test_training_in_fp16_learns(prepared):
    """With real fp16 arithmetic of the CPU."""
    updates = Updates(prepared, Train(), precision="fp16")
    losses = [updates.update(rate=5e-3).loss for _ in range(30)]
    assert all(map(math.isfinite, losses)) and sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_the_scale_of_fp16_is_resumed(prepared):
    state = State(scaler={"scale": 1024.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000})
    state.scaler["_growth_tracker"] = 1999
    updates = Updates(prepared, Train(), precision="fp16", state=state)
    updates.update()
    assert updates.updater.scaler.get_scale() == 2048.0 and updates.updater.scaler.state_dict()["_growth_tracker"] == 0


@pytest.mark.torture  # the trial of the processor takes long
def test_training_in_bf16_learns_as_in_fp32(prepared):
    """A processor without bf16 can die of an illegal instruction, so a child process tries it first."""
    if isinstance(reason := _trial(load_recipe(find_recipe("demo")), (99, 99), CPU, "bf16"), str):
        pytest.skip(f"bf16 does not work on this processor: {reason}")
    means = {}
    for precision in ("fp32", "bf16"):
        updates = Updates(prepared, Train(), precision=precision)
        means[precision] = sum([updates.update(rate=3e-3).nll for _ in range(200)][-20:])
    assert means["bf16"] == pytest.approx(means["fp32"], rel=0.02)
