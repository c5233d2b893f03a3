"""The files of docs/examples: bash reads the scripts, and the PyTorchJob has the parts that the operator asks for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs/examples"


@pytest.mark.parametrize("name", ["train.sbatch", "train-ssh.sh"])
def test_bash_reads_the_example(name):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    done = subprocess.run([bash, "-n", EXAMPLES / name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["train.sbatch", "train-ssh.sh", "pytorchjob.yaml"])
def test_the_example_meets_as_the_docs_say(name):
    """Only this way of torchrun was tried: the rendezvous c10d, whose host is named."""
    text, docs = (EXAMPLES / name).read_text(), (EXAMPLES.parent / "training.md").read_text()
    for words in ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "--rdzv-backend c10d", "is_host=", "--local-addr"):
        assert words in text and words in docs
    assert ("# Not run:" in text) == (name != "train-ssh.sh")


def test_parts_of_the_pytorchjob():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas.keys() == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
    nodes = sum(part["replicas"] for part in replicas.values())
    for part in replicas.values():
        pod = part["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch" and part["restartPolicy"] == "OnFailure"
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        words = container["args"][0].split()
        subprocess.run(["bash", "-n", "-c", container["args"][0]], check=True)
        assert words[words.index("--nnodes") + 1] == str(nodes)
        assert words[words.index("--nproc-per-node") + 1] == str(container["resources"]["limits"]["nvidia.com/gpu"])
