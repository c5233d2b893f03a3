"""A pretended accelerator: tensors without values on a device called "pretend", and a count of the waits of the host.

torch lets a backend be registered from Python; FakeTensorMode computes shapes, types and devices only. A tensor that
was left on the CPU is an error there, as on a GPU. Registering cannot be undone, so it happens in a forked process (the
fixture in_a_fork).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import Library, fallthrough_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

aten = torch.ops.aten
# Operations whose result, or whose size of the result, is a value that the host must know.
WAITING = {
    aten._local_scalar_dense.default, aten.item.default, aten.is_nonzero.default, aten.equal.default,
    aten.nonzero.default, aten.masked_select.default, aten.repeat_interleave.Tensor, aten.bincount.default,
    aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default,
}  # fmt: skip
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._unsafe_index.Tensor}
PRODUCTS = {aten.mm.default, aten.addmm.default}


def _gru_cell(input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(len(hx), 5 * hx.size(1))


def _gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    gates, bias = grad.new_empty(len(grad), 3 * grad.size(1)), grad.new_empty(3 * grad.size(1))
    return gates, gates.clone(), grad.clone(), bias, bias.clone()


CELLS = {aten.rnn_tanh_cell.default, aten.gru_cell.default, aten.lstm_cell.default}
# Operations that FakeTensorMode does not know.
ANSWERS: dict[Any, Callable[..., Any]] = {
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}

# Operations that autocast computes in bf16 or fp16 on CUDA, and in fp32. torch leaves these rules to a backend.
LOW = (
    "linear matmul mm mv bmm addmm baddbmm einsum conv1d convolution scaled_dot_product_attention lstm_cell gru_cell "
    "rnn_tanh_cell _thnn_fused_gru_cell"
)
FULL = (
    "exp log log1p reciprocal rsqrt softplus layer_norm softmax.int log_softmax.int logsumexp nll_loss kl_div cumprod "
    "cumsum prod prod.dim_int sum sum.dim_IntList pow.Tensor_Scalar cosine_similarity"
)
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)


def _in_type(name: str, in_fp32: bool) -> Callable[..., Any]:
    """The operation `name` of aten with its floating-point tensors in the type of autocast, or in fp32."""
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(aten, packet), overload or "default")

    def call(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.float32 if in_fp32 else torch.get_autocast_dtype("pretend")
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            args, kwargs = tree_map(
                lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, (args, kwargs)
            )
            return operation(*args, **kwargs)

    return call


def _register_autocast() -> list[Library]:
    """Give the pretended accelerator the rules of autocast. They end with the libraries that are returned."""
    torch.get_device_module("pretend").get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    libraries = [Library("_", "IMPL"), Library("aten", "IMPL")]
    libraries[0].fallback(fallthrough_kernel, "AutocastPrivateUse1")
    for names, in_fp32 in ((LOW, False), (FULL, True)):
        for name in names.split():
            libraries[1].impl(name, _in_type(name, in_fp32), "AutocastPrivateUse1")
    return libraries


class Waits(TorchDispatchMode):
    """Counts the operations that make the host wait for the accelerator, by name, and answers them: 0 at first, then 1.

    Tensors on the CPU may be read. An event counts as "synchronize". A copy between the devices waits ("copy") if it
    is not told not to, or if it comes from memory that is not pinned.
    """

    def __init__(self, zeros: int = 0) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.device = torch.device("pretend", 0)
        self.zeros = zeros  # the number of values that are 0
        self.autocast_rules: list[Library] = []  # kept here, because the rules end with their libraries
        self.pinned: set[int] = set()  # addresses of arrays in pinned memory
        self.types: set[torch.dtype] = set()  # of the matrices that were multiplied

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        on_device = args and isinstance(args[0], Tensor) and args[0].device.type != "cpu"
        if func in WAITING and on_device:
            self.counts[func.__name__] += 1
        if func in INDEXING and any(index is not None and index.dtype is torch.bool for index in args[1]):
            self.counts[func.__name__] += 1
        if func is aten._to_copy.default and kwargs.get("device"):
            self.copy(args[0], torch.device(kwargs["device"]), kwargs.get("non_blocking", False))
        if func is aten.copy_.default:
            self.copy(args[1], args[0].device, (*args[2:], False)[0])
        if func in PRODUCTS:
            self.types |= {x.dtype for x in args}
        if func in ANSWERS:
            return ANSWERS[func](*args)
        if func in (aten._local_scalar_dense.default, aten.item.default):
            self.zeros -= 1
            value = 0 if self.zeros >= 0 else 1
            return float(value) if args[0].is_floating_point() else value
        if func in CELLS:  # in inference mode, torch does not take them apart
            with self:
                return func.decompose(*args, **kwargs)
        return func(*args, **kwargs)

    def copy(self, source: Tensor, device: torch.device, non_blocking: bool) -> None:
        if source.device.type != device.type:
            is_pinned = device.type == "cpu" or getattr(source, "came_from", 0) in self.pinned
            self.counts["copy"] += not (non_blocking and is_pinned)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@contextmanager
def pretend(zeros: int = 0) -> Iterator[Waits]:
    """Inside, torch.accelerator is "pretend" and no tensor has values. Call this in a process of its own."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    if torch._C._get_privateuse1_backend_name() != "pretend":
        _setup_privateuseone_for_python_backend("pretend")
    waits = Waits(zeros)
    waits.autocast_rules = _register_autocast()

    class Event:
        def __init__(self, device: torch.device) -> None:
            assert device.type == "pretend"

        def record(self) -> None: ...

        def synchronize(self) -> None:
            waits.counts["synchronize"] += 1

    def tensor(data: Any, dtype: torch.dtype | None = None, device: Any = "cpu") -> Tensor:
        waits.counts["copy"] += torch.device(device).type != "cpu"
        is_float = np.array(data).dtype.kind == "f"
        return torch.zeros(np.shape(data), dtype=dtype or (torch.float32 if is_float else torch.long), device=device)

    def pin_memory(x: Tensor) -> Tensor:
        waits.pinned.add(x.data_ptr())
        return x

    true_from_numpy = torch.from_numpy

    def from_numpy(array: np.ndarray) -> Tensor:
        x = true_from_numpy(array)
        x.came_from = address(array)  # type: ignore[attr-defined]  # a tensor without values has no address
        return x

    def synchronize(*device: Any) -> None:
        waits.counts["synchronize"] += 1

    torch.Tensor.pin_memory = pin_memory  # type: ignore[assignment, method-assign]
    torch.from_numpy = from_numpy  # type: ignore[assignment]
    torch.accelerator.synchronize = synchronize
    torch.tensor = tensor  # type: ignore[assignment]  # the true one asks the device for memory
    torch.Event = Event  # type: ignore[misc, assignment]
    # The modes below hold for this thread only, so the backward pass must not run in another.
    with torch.autograd.set_multithreading_enabled(False), FakeTensorMode(allow_non_fake_inputs=True), waits:
        yield waits
