"""Recipes: shipped recipes load, errors name the wrong setting, and a written recipe reads back the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from recipe_keys import keys_markdown

from nmt_cli.errors import NmtError
from nmt_cli.recipe.help import comments
from nmt_cli.recipe.load import (
    load_recipe,
    open_recipe,
    parse_overrides,
    recipe_tables,
    shipped_recipes,
    tables_toml,
)
from nmt_cli.recipe.schema import FAMILIES, Augment, Conv, Corpus, Recipe, Rnn, Train, keys_of


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_load_and_build(name):
    import torch

    from nmt_cli.model.build import build_model

    path = shipped_recipes()[name]
    assert len(comments(path)[0]) > 20
    recipe = load_recipe(path)
    assert recipe.data.train, "a shipped recipe names its corpus"
    with torch.device("meta"):
        build_model(recipe.model, recipe.vocab.size, recipe.vocab.size)


def test_a_model_on_the_meta_device_draws_no_normal_numbers():
    """To draw them there, torch imports its compiler. Every command that loads a model would wait two seconds."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from nmt_cli.model.build import build_model

    called = set()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    for name in ("demo", "demo-rnn-attention", "demo-conv", "demo-bytenet", "demo-decoder"):  # one of each family
        with Recorder(), torch.device("meta"):
            build_model(load_recipe(shipped_recipes()[name]).model, 100, 100)
    assert "zero_" in called or "fill_" in called  # the other initial weights are recorded
    assert not {name for name in called if "normal" in name}


def test_docs_recipe_md_lists_all_keys():
    docs = Path(__file__).parents[2] / "docs" / "recipe.md"
    assert keys_markdown() in docs.read_text(encoding="utf-8"), "run: make docs"


def test_defaults_need_no_file():
    recipe = load_recipe(None)
    assert recipe.run_folder == Path("runs/recipe")
    assert recipe.prepared_folder == Path("data/recipe")


PROBLEMS = [
    ("train.warmpu=5", "train.warmpu: unknown key; did you mean train.warmup?"),
    ("trian.warmup=5", "trian.warmup: unknown key; did you mean train.warmup?"),
    ("warmup=5", "warmup: unknown key; did you mean train.warmup?"),
    ("train.dropout=0.1", "train.dropout: unknown key; did you mean model.dropout?"),
    ("train.warmup='5'", "train.warmup: must be a whole number, not '5'"),
    ("train.warmup=true", "train.warmup: must be a whole number, not True"),
    ("train.warmup=1.5", "train.warmup: must be a whole number, not 1.5"),
    ("train.warmup=-1", "train.warmup: must be at least 0, not -1"),
    ("train.lr=nan", "train.lr: must be a finite number"),
    ("train.lr=inf", "train.lr: must be a finite number"),
    ("model.dropout=1", "model.dropout: must be below 1, not 1"),
    ("model.dropout=[0.1]", "model.dropout: must be a number, not [0.1]"),
    ("model.norm=prae", 'model.norm: must be one of "post", "pre", not \'prae\'; did you mean pre?'),
    ("model.heads=3", "model.heads: must divide dim = 256; 3 does not"),
    ("model.experts=2", "model.experts_top: must be below experts = 2, not 2"),
    ("model.family=lstm", '--set: model.family: must be one of transformer, rnn, conv, bytenet, decoder, not "lstm"'),
    ("vocab.joint=1", "vocab.joint: must be true or false, not 1"),
    ("vocab.joint=false", 'model.tie: "all" needs vocab.joint = true'),
    ("vocab.symbols=['<a>','<a>']", "vocab.symbols: lists a symbol twice"),
    ("vocab.symbols=['']", "vocab.symbols: has a blank symbol"),
    ("vocab.type=char vocab.byte_fallback=true", '--set: vocab.byte_fallback: needs type = "bpe" or "unigram"'),
    ("vocab.type=word vocab.byte_fallback=true", 'type = "word" has no pieces for bytes'),
    ("vocab.size=-3", "vocab.size (--vocab-size): must be at least 0, not -3"),
    ("train.minutes=-3", "train.minutes (--minutes): must be at least 0, not -3"),
    ("vocab.coverage=0.5", "vocab.coverage: must be at least 0.98"),
    ("data.train=[1]", 'data.train: a corpus is ["a.en", "a.de"] or "both.tsv", not 1'),
    ("data.train=[['a','b','c']]", "data.train: a corpus is"),
    ("data.source_lang=1", "data.source_lang: must be a string in quotes, not 1"),
    ("train.out=5", "train.out: must be a path in quotes, not 5"),
    ("train.auto=false train.schedule=cosine", 'train.lr: must be set with schedule = "cosine"'),
    ("train.auto=false train.warmup=0", 'train.warmup: must be at least 1 with schedule = "inverse_sqrt"'),
    ("model.max_positions=1024 data.clean.max_tokens=1500", "model.max_positions: must be above"),
    ("model.max_positions=100", "model.max_positions: must be above data.clean.max_tokens = 250"),
    ("model=5", "model: unknown key"),
    ("train.augment.typo=0.1", "train.augment.typo: unknown key; did you mean train.augment.typos?"),
    ("train.typos=0.1", "train.typos: unknown key; did you mean train.augment.typos?"),
    ("train.augment.typos=1.5", "train.augment.typos: must be at most 1, not 1.5"),
    ("train.augment.typos=true", "train.augment.typos: must be a number, not True"),
    (
        "train.augment.capitals=0.5 train.augment.title_case=0.4 train.augment.lower_case=0.2",
        "train.augment.capitals: capitals, title_case and lower_case are 1.1 together; at most 1 is possible",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), PROBLEMS)
def test_a_wrong_setting_is_named(overrides, message):
    with pytest.raises(NmtError) as caught:
        load_recipe(None, parse_overrides(overrides.split(" ")))
    assert message in caught.value.message
    assert caught.value.hint


FAMILY_PROBLEMS = [
    ("conv", "model.heads=8", "model.heads: unknown key"),
    ("conv", "model.kernel=4", "model.kernel: must be odd, not 4"),
    ("bytenet", "model.kernel=4", "model.kernel: must be odd, not 4"),
    ("rnn", "model.experts=4", "model.experts: stand between two layers"),
    (
        *("rnn", "model.experts=4 model.encoder_layers=2 model.decoder_layers=2 model.directions=interleaved"),
        "model.experts: have no place beside",
    ),
    ("bytenet", "model.dim=33", "model.dim: must be even, not 33"),
    ("conv", "model.max_positions=100", "model.max_positions: must be above data.clean.max_tokens = 250"),
    ("rnn", "model.max_positions=100", "model.max_positions: unknown key"),
    ("rnn", "model.ff=8", "model.ff: unknown key"),
    ("rnn", "model.dim=33", 'model.dim: must be even with directions = "both", not 33'),
    ("rnn", "model.bidirectional=true", "model.bidirectional: unknown key; did you mean model.directions?"),
    ("rnn", "model.dim=34 model.skip=fast_forward", "model.dim: must be a multiple of 4"),
    ("rnn", "model.skip=residual", "model.skip: residual connections begin at the third layer"),
    ("rnn", "model.order=bottom model.attention=none", "model.order: needs attention"),
    ("rnn", "model.context_to_all=true", 'model.context_to_all: needs order = "before" or "bottom"'),
    ("rnn", "model.order=bottom model.input_feeding=true", 'model.input_feeding: needs order = "after"'),
    ("rnn", "model.heads=2", "model.heads: 2 heads need projections = true"),
    ("rnn", "model.heads=3", "model.heads: must divide dim = 256; 3 does not"),
    ("rnn", "model.attention=luong", 'model.attention: must be one of "none", "plain_cosine"'),
    ("rnn", "vocab.joint=false", 'model.tie: "all" needs vocab.joint = true'),
    ("decoder", "model.encoder_layers=2", "model.encoder_layers: unknown key"),
    ("decoder", "model.heads=3", "model.heads: must divide dim = 256; 3 does not"),
    ("decoder", "model.dim=250", "model.heads: must divide dim = 250; 4 does not"),
]


@pytest.mark.parametrize(("family", "override", "message"), FAMILY_PROBLEMS)
def test_a_wrong_setting_of_another_family_is_named(family, override, message):
    with pytest.raises(NmtError) as caught:
        load_recipe(None, parse_overrides((f"model.family={family}", *override.split())))
    assert message in caught.value.message


@pytest.mark.parametrize("kind", ["char", "word"])
def test_subword_sampling_needs_subwords(kind):
    with pytest.raises(NmtError, match=r"train\.subword_sampling: needs pieces to cut"):
        load_recipe(None, parse_overrides((f"vocab.type={kind}", "train.subword_sampling=0.1")))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("family=rnn", "order=before", "input_feeding=true"), r'model\.input_feeding: needs order = "after"'),
        (("positions=none", "positions_join=concat"), r"model\.positions_join: needs positions"),
        (("family=decoder", "positions=none", "positions_join=concat"), r"model\.positions_join: needs positions"),
    ],
)
def test_two_keys_that_exclude_each_other(overrides, message):
    with pytest.raises(NmtError, match=message):
        load_recipe(None, parse_overrides([f"model.{override}" for override in overrides]))


def test_keys_of_attention_need_attention():
    keys = ("order=before", "span=monotonic", "projections=true", "heads=2", "input_feeding=true", "hard=true")
    with pytest.raises(NmtError) as caught:
        load_recipe(
            None, parse_overrides(("model.family=rnn", "model.attention=none", *(f"model.{key}" for key in keys)))
        )
    for key in ("order", "span", "projections", "heads", "input_feeding", "hard"):
        assert f'model.{key}: needs attention, but attention = "none"' in caught.value.message


def test_another_family_replaces_all_model_keys(write):
    """The same family keeps the keys of the base. A key that the new family does not have is refused."""
    write("base.toml", "[model]\nheads = 2\nff = 8\ndropout = 0.3\n[train]\nseed = 5\n")
    path = write("x.toml", 'extends = "base.toml"\n[model]\nfamily = "rnn"\ncell = "gru"\n')
    recipe = load_recipe(path)
    assert recipe.model == Rnn(cell="gru") and recipe.train.seed == 5
    assert load_recipe(path, parse_overrides(("model.dim=64", "model.family=conv", "model.kernel=5"))).model == Conv(
        dim=64, kernel=5
    )
    assert load_recipe(path, parse_overrides(("model.dim=64", "model.family=rnn"))).model == Rnn(cell="gru", dim=64)
    with pytest.raises(NmtError, match=r"x\.toml: model\.ff: unknown key"):
        load_recipe(write("x.toml", 'extends = "base.toml"\n[model]\nfamily = "rnn"\nff = 8\n'))


def test_all_problems_are_reported_at_once():
    with pytest.raises(NmtError) as caught:
        load_recipe(None, parse_overrides([override for override, _ in PROBLEMS if "family" not in override]))
    for text in ("warmpu", "model.norm", "symbols", "data.train", "source_lang", "train.out", "must divide"):
        assert text in caught.value.message


@pytest.mark.parametrize("override", ["train.warmup", "=5", ""])
def test_set_needs_key_and_value(override):
    with pytest.raises(NmtError, match="key=value"):
        load_recipe(None, parse_overrides((override,)))


def test_the_message_names_file_and_key(write):
    path = write("my.toml", "[train]\nwarmpu = 5\n")
    with pytest.raises(NmtError) as caught:
        load_recipe(path)
    assert caught.value.message == f"{path}: train.warmpu: unknown key; did you mean train.warmup?"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[train\n", "not valid TOML"),
        (b"a = caf\n", "not valid TOML"),
        (b'a = "caf\xe9"\n', "not UTF-8 at byte 8"),
        (b"extends = 5\n", "must be a file name"),
        (b'extends = "none-such"\n', "there is no recipe none-such"),
        (b'extends = "x.toml"\n', "extends itself"),
    ],
)
def test_a_damaged_recipe_is_refused(write, content, message):
    with pytest.raises(NmtError, match=message):
        load_recipe(write("x.toml", content))


LISTED = "nmt recipes lists the shipped recipes"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("data/x", f"nmt prepare --source FILE --target FILE --out data/x makes such a folder; {LISTED}"),
        ("data/a b", f"nmt prepare --source FILE --target FILE --out 'data/a b' makes such a folder; {LISTED}"),
        (
            "data/demo",
            "nmt prepare --source FILE --target FILE --out data/demo makes such a folder; "
            "did you mean the shipped recipe demo?",
        ),
        ("data/x.en", LISTED),
        ("data/x.toml", LISTED),
        ("runs/x", LISTED),
        ("x", LISTED),
    ],
)
def test_the_hint_for_missing_data_is_the_command_that_prepares_them(tmp_path, monkeypatch, name, hint):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NmtError) as refused:
        open_recipe(name)
    assert refused.value.hint == hint
    in_a_folder = "/" in name and not name.endswith(".toml")
    assert str(refused.value) == f"there is no recipe {name}" + ", and no folder of this name" * in_a_folder


def test_a_recipe_overrides_the_recipe_it_extends(write):
    write("base/base.toml", '[train]\nwarmup = 7\nseed = 3\n[data]\ntrain = ["a.en", "a.de"]\nvalid = "v.tsv"\n')
    path = write("exp/x.toml", 'extends = "../base/base.toml"\n[train]\nwarmup = 9\n[data]\nvalid = "w.tsv"\n')
    recipe = load_recipe(path, parse_overrides(("train.seed=4",)))
    assert (recipe.train.warmup, recipe.train.seed) == (9, 4)
    # a path is relative to the folder of its recipe file
    assert recipe.data.train == (Corpus(path.parent.parent / "base/a.en", path.parent.parent / "base/a.de"),)
    assert recipe.data.valid == (Corpus(path.parent / "w.tsv"),)
    assert recipe.run_folder == path.parent / "runs/x"


PARENT = """
[data]
source_lang = "en"
folder = "corpora"
train = ["a.en", "a.de"]
valid = "v.tsv"
test = "t.tsv"
prepared = "old-data"
[train]
out = "old-run"
seed = 3
"""


def test_own_training_files_inherit_no_corpora_and_no_folders(write, tmp_path):
    write("base/base.toml", PARENT)
    child = 'extends = "../base/base.toml"\n[data]\n'
    own = load_recipe(write("exp/x.toml", child + 'train = ["b.en", "b.de"]\n'))
    assert own.data.corpora() == {
        "train": (Corpus(tmp_path / "exp/b.en", tmp_path / "exp/b.de"),),
        "valid": (),
        "test": (),
    }
    assert (own.prepared_folder, own.run_folder) == (tmp_path / "exp/data/x", tmp_path / "exp/runs/x")
    assert (own.train.seed, own.data.source_lang) == (3, "en")  # other settings are inherited
    # A child without training files keeps the data of its parent, but not the run.
    same = load_recipe(write("exp/y.toml", child + 'valid = "w.tsv"\n'))
    assert same.data.corpora() == {
        "train": (Corpus(tmp_path / "base/corpora/a.en", tmp_path / "base/corpora/a.de"),),
        "valid": (Corpus(tmp_path / "exp/w.tsv"),),  # not in the data.folder of the parent
        "test": (Corpus(tmp_path / "base/corpora/t.tsv"),),
    }
    assert (same.prepared_folder, same.run_folder) == (tmp_path / "base/old-data", tmp_path / "exp/runs/y")
    # A command line that names training files is a new experiment, too.
    new = load_recipe(tmp_path / "base/base.toml", {"data.train": ["c.en", "c.de"], "data.prepared": "new"})
    assert new.data.corpora() == {"train": (Corpus(Path("c.en"), Path("c.de")),), "valid": (), "test": ()}
    assert (new.prepared_folder, new.run_folder) == (Path("new"), tmp_path / "base/runs/base")


def test_the_data_folder_of_a_child_moves_the_corpora_of_its_parent(write, tmp_path):
    write("base/base.toml", PARENT)
    recipe = load_recipe(write("x.toml", 'extends = "base/base.toml"\n[data]\nfolder = "moved"\n'))
    assert recipe.data.valid == (Corpus(tmp_path / "moved/v.tsv"),)


def test_extends_finds_shipped_recipes(write):
    assert load_recipe(write("x.toml", 'extends = "demo"\n')).data.target_lang == "fr"


def test_the_data_folder_moves_all_corpora(write):
    path = write("x.toml", '[data]\ntrain = [["a.en", "a.de"], "b.tsv"]\n')
    recipe = load_recipe(path, parse_overrides(("data.folder=/elsewhere",)))
    assert recipe.data.train == (
        Corpus(Path("/elsewhere/a.en"), Path("/elsewhere/a.de")),
        Corpus(Path("/elsewhere/b.tsv")),
    )


def test_paths_of_a_shipped_recipe_start_from_the_current_folder():
    recipe = load_recipe(shipped_recipes()["demo"])
    assert recipe.run_folder == Path("runs/demo")
    assert recipe.data.train == (Corpus(Path("demo/train.en"), Path("demo/train.fr")),)


def test_another_run_folder_does_not_move_the_prepared_data(write):
    path = write("my/exp.toml", "[vocab]\nsize = 60\n")
    recipe = load_recipe(path, {"train.out": "elsewhere"})
    assert recipe.run_folder == Path("elsewhere")
    assert recipe.prepared_folder == load_recipe(path).prepared_folder == path.parent / "data/exp"


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_written_recipe_reads_back(name, write):
    recipe = load_recipe(shipped_recipes()[name])
    path = write(f"{name}.toml", tables_toml(recipe_tables(recipe, absolute=True)))
    assert recipe_tables(load_recipe(path)) == recipe_tables(recipe, absolute=True)


@pytest.mark.parametrize(
    "overrides",
    [{"model.dim": 250}, {"data.clean.max_tokens": 1500}, {"model.family": "conv", "data.clean.max_tokens": 1500}],
)
def test_a_key_that_is_chosen_later_is_no_problem_before(overrides, write):
    recipe = load_recipe(None, overrides)
    again = load_recipe(write("r.toml", tables_toml(recipe_tables(recipe))))
    assert (again.model, again.data.clean) == (recipe.model, recipe.data.clean)
    with pytest.raises(NmtError, match=r"model\.(heads|max_positions): must"):
        load_recipe(None, {**overrides, "train.auto": False})


def test_a_recipe_whose_training_is_chosen_keeps_the_stated_keys(write):
    recipe = load_recipe(None, {"train.augment.typos": 0.1, "train.seed": 2})
    tables = recipe_tables(recipe)
    assert tables["train"].keys() == {"auto", "seed", "augment"} and not tables["model"]
    again = load_recipe(write("r.toml", tables_toml(tables)))
    assert again.train.auto and again.train.augment == recipe.train.augment == Augment(typos=0.1)


def test_every_key_is_documented():
    for field in dataclasses.fields(Recipe):
        if field.name not in ("name", "stated"):
            for key in keys_of(type(getattr(Recipe(), field.name)), field.name + "."):
                assert key.doc, key.name
    for family in FAMILIES.values():
        assert all(key.doc for key in keys_of(family))


def test_dataclasses_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Train().seed = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "max_positions", "learned_positions"),
    [
        ({}, 1024, 0),
        ({"model.positions": "learned"}, 1024, 1024),
        ({"model.family": "conv", "model.max_positions": 300}, 300, 300),
        ({"model.family": "decoder", "model.positions": "learned", "model.max_positions": 300}, 300, 300),
        ({"model.family": "decoder"}, 1024, 0),
        ({"model.family": "rnn"}, 0, 0),
        ({"model.family": "bytenet"}, 0, 0),
    ],
)
def test_every_family_states_its_positions(settings, max_positions, learned_positions):
    model = load_recipe(None, settings).model
    assert (model.max_positions, model.learned_positions) == (max_positions, learned_positions)
