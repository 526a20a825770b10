"""Watches every load and store of an interpreted kernel: refuses the wrong ones and counts the rest.

A wild pointer gives another tensor's bytes or ends the process, in a compiled kernel and in the interpreter.
`watch` stops it before memory is touched and says where: line, program, index and limit. It also counts the
bytes that a kernel moves, so that a kernel can be made better without a GPU.

A kernel under watch gets made-up addresses (`addresses`), and the four functions with which Triton's
interpreter touches memory, the same in Triton 3.5 to 3.9, are replaced by ones that check and translate them.

Left out: shared memory and registers, which the interpreter doesn't model; two lanes of one program that
store to one element. Pointers that were read from memory, and those of tensors inside a tuple or a tensor
descriptor, are refused, right or wrong. Chapter 11.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from minipaged.kernels import triton_status
from minipaged.kernels.addresses import Argument, Array, FarTensor, region_of
from minipaged.kernels.traffic import Launch, ProgramId, Report, TensorTraffic, Traffic

_NAN_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class KernelFault(RuntimeError):
    """A kernel touched memory in a way that is wrong on a GPU, whatever it does here.

    `kernel` and `program` say what ran, `file` and `line` where; `tensor` is the kernel's name of the
    argument, `index` the first wrong element. The message says all that, and what the limit was.
    """

    def __init__(
        self, what: str, tensor: str, index: tuple[int, ...], kernel: str, program: ProgramId
    ) -> None:
        super().__init__(what)
        self.tensor, self.index = tensor, index
        self.kernel, self.program = kernel, program
        self.file, self.line = _kernel_line()

    def __str__(self) -> str:
        code = linecache.getline(self.file, self.line).strip()
        where = f"{Path(self.file).name}, line {self.line}: {code}"
        return f"{self.kernel} {self.args[0]}\n  in program {self.program}\n  {where}"


class OutOfBounds(KernelFault):
    """A load or store of an element that the tensor doesn't have: a mask or an index is wrong."""


class UnwrittenRead(KernelFault):
    """A load of an element that was never written: it holds whatever the memory held before."""


class Race(KernelFault):
    """Two programs touch one element and one of them stores it: on a GPU they run at once, in any order."""


@contextmanager
def watch(*, unwritten: Sequence[Tensor] = (), check_races: bool = True) -> Iterator[Report]:
    """Watch the kernels that run in this block: an error at the first wrong access, else a report.

    unwritten: tensors in which NaN marks an element that was never written, so that loading it is an error.
    Fill a new cache with NaN to use it. check_races: False for a kernel whose programs wait for each other
    with atomics, which the check doesn't understand.

    While watched, lanes that a masked load without `other` leaves out come back as NaN (or the largest
    integer), not as the interpreter's 0: on a GPU they hold anything at all.

    Example::

        with watch(unwritten=[k_cache, v_cache]) as report:
            store_kv(k, v, k_cache, v_cache, slot_mapping)
        print(report)
        report["k_ptr"].bytes_loaded  # T · G · D elements of k

    Raises OutOfBounds, UnwrittenRead or Race; ValueError where kernels are not interpreted.
    """
    if not triton_status().interpret:
        why = (
            "set TRITON_INTERPRET=1 before starting Python" if triton_status().installed else "install triton"
        )
        raise ValueError(f"only interpreted kernels can be watched: {why}")
    from triton.runtime import interpreter  # here, because it can't be imported without triton

    memory = _WatchedMemory(interpreter, unwritten, check_races)
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    with (
        _replaced(interpreter, "_interpreter", memory),
        _replaced(executor, "_init_args_hst", memory.on_launch(executor._init_args_hst)),
        _replaced(builder, "create_masked_load", _with_garbage(builder.create_masked_load, interpreter)),
    ):
        try:
            yield memory.report
        except interpreter.InterpreterError:
            if memory.fault is None:
                raise
            raise memory.fault.with_traceback(None) from None  # the frames between are the interpreter's own
        finally:
            memory.forget()


def guarded(tensor: Tensor) -> Tensor:
    """A copy with a gap of one after each row, in every dimension; the gaps hold NaN or the largest integer.

    In a contiguous tensor, an index past the end of a row is the next row's beginning, and it can't be told
    that it is wrong. Here it falls into a gap, and `watch` refuses it. The order of the dimensions in memory
    stays, and elements that don't lie side by side get gaps between them. Example:
    `guarded(torch.zeros(2, 8))` has strides (9, 1).
    """
    junk = float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)  # the outermost dimension first
    sizes = [tensor.shape[dim] + 1 for dim in order] + [1 if 1 in tensor.stride() else 2]
    storage = torch.full(sizes, junk, dtype=tensor.dtype, device=tensor.device)[..., 0]
    in_place = storage.permute([order.index(dim) for dim in range(tensor.dim())])
    return in_place[tuple(slice(size) for size in tensor.shape)].copy_(tensor)


@contextmanager
def _replaced(owner: Any, name: str, value: object) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _with_garbage(create_masked_load: Callable[..., Any], interpreter: Any) -> Callable[..., Any]:
    def create(builder: Any, ptrs: Any, mask: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        if other is None:
            dtype = ptrs.get_element_ty()
            values = np.full(ptrs.data.shape, _garbage(interpreter._get_np_dtype(dtype)))
            other = interpreter.TensorHandle(values, dtype)
        return create_masked_load(builder, ptrs, mask, other, *args, **kwargs)

    return create


def _garbage(dtype: np.dtype[Any]) -> Any:
    """NaN, or the largest integer, which is NaN too where 16 bits without a sign stand for bfloat16."""
    if dtype.kind == "b":
        return np.True_
    return dtype.type(np.nan if dtype.kind == "f" else np.iinfo(dtype).max)


def _near(argument: Any) -> Any:
    return argument.as_subclass(Tensor) if isinstance(argument, FarTensor) else argument


def _kernel_line() -> tuple[str, int]:
    """File and line of the kernel that runs: the innermost frame of neither triton nor this module."""
    frame = sys._getframe(1)
    while (frame.f_globals["__name__"] + ".").startswith(("triton.", __name__ + ".")) and frame.f_back:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


class _Storage:
    """Which program touched each element in this launch: its number, or 0 for none.

    Programs run one after the other here. So if the first reader of an element is the program that runs now,
    no other has read it yet, and two arrays are enough to find every two programs that meet.
    """

    def __init__(self, num_elements: int) -> None:
        self.first_reader = np.zeros(num_elements, np.int32)  # takes no memory where it is not touched
        self.last_writer = np.zeros(num_elements, np.int32)


Touched: TypeAlias = list[tuple[Argument, Array, Array]]  # with the lanes, and each lane's offset


class _WatchedMemory:
    """Stands where the interpreter's access to memory stands: checks, counts, translates, and passes on."""

    def __init__(self, interpreter: Any, unwritten: Sequence[Tensor], check_races: bool) -> None:
        for tensor in unwritten:
            if tensor.dtype not in _NAN_TYPES:
                raise ValueError(f"NaN marks what is unwritten, and a tensor of {tensor.dtype} can't hold it")
        self.report = Report()
        self.fault: KernelFault | None = None
        self._memory = interpreter._interpreter
        self._builder = interpreter.interpreter_builder
        self._unwritten = {tensor.untyped_storage().data_ptr() for tensor in unwritten}
        self._check_races = check_races
        self.forget()

    def forget(self) -> None:
        """Let go of what is known about a launch; the next begins with nothing."""
        self._arguments: list[Argument] = []
        self._may_be_unwritten: set[Argument] = set()
        self._storages: dict[tuple[int, int], _Storage] = {}
        self._storage_of: dict[Argument, tuple[_Storage, int]] = {}
        self._programs: list[ProgramId] = []

    def on_launch(self, init_args: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what prepares the arguments of a launch: begin its counts, and replace its addresses."""

        def init(executor: Any, args_dev: Any, kwargs_dev: Any) -> Any:
            self.forget()
            self._launch = Launch(executor.fn.__name__)
            self.report.launches.append(self._launch)
            args, kwargs = init_args(
                executor, [_near(arg) for arg in args_dev], {k: _near(arg) for k, arg in kwargs_dev.items()}
            )
            named = zip(executor.arg_names, args, args_dev, strict=False)
            return (
                [self._addressed(name, arg, arg_dev) for name, arg, arg_dev in named],
                {name: self._addressed(name, arg, kwargs_dev[name]) for name, arg in kwargs.items()},
            )

        return init

    def _addressed(self, name: str, arg: Any, arg_dev: Any) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        argument = Argument(len(self._arguments) + 1, name, arg, arg_dev.stride())
        self._arguments.append(argument)
        self._launch.tensors[name] = TensorTraffic()
        # Views of one storage share what is known about it: programs may meet through different arguments.
        memory, itemsize = arg.untyped_storage(), arg.element_size()
        storage = self._storages.setdefault(
            (memory.data_ptr(), itemsize), _Storage(memory.nbytes() // itemsize)
        )
        self._storage_of[argument] = storage, int(arg.storage_offset())
        if arg_dev.untyped_storage().data_ptr() in self._unwritten:
            self._may_be_unwritten.add(argument)
        return argument.addressed(arg)

    # -- what the interpreter calls ----------------------------------------------------------------

    def load(self, ptrs: Array, mask: Array, other: Array, dtype: np.dtype[Any]) -> Array:
        real, touched = self._translate("loads", ptrs, mask)
        for argument, _, offsets in touched:
            self._note_load(argument, np.unique(offsets))
        values: Array = self._memory.load(real, mask, other, dtype)
        for argument, lanes, offsets in touched:
            if argument in self._may_be_unwritten:
                self._check_written(argument, offsets, values[lanes])
        return values

    def store(self, ptrs: Array, values: Array, mask: Array) -> Any:
        real, touched = self._translate("stores", ptrs, mask)
        for argument, _, offsets in touched:
            self._note_store(argument, np.unique(offsets))
        return self._memory.store(real, values, mask)

    def atomic_cas(self, ptrs: Array, expected: Array, values: Array, sem: Any) -> Any:
        return self._memory.atomic_cas(self._note_atomic(ptrs, np.array(True)), expected, values, sem)

    def atomic_rmw(self, operation: Any, ptrs: Array, values: Array, mask: Array, sem: Any) -> Any:
        return self._memory.atomic_rmw(operation, self._note_atomic(ptrs, mask), values, mask, sem)

    # -- bounds and addresses ----------------------------------------------------------------------

    def _translate(self, verb: str, ptrs: Array, mask: Array) -> tuple[Array, Touched]:
        """The real addresses of the unmasked lanes, all of them checked, and whose elements they are."""
        # subtle: a number compared with a number, spread over a tile, comes as 32-bit integers, not as bool.
        mask, real, touched = np.broadcast_to(mask, ptrs.shape).astype(bool), ptrs.copy(), []
        regions = region_of(ptrs)
        for region in map(int, np.unique(regions[mask])):
            lanes = mask & (regions == region)
            if not 1 <= region <= len(self._arguments):
                address = int(ptrs[lanes][0])
                self._fail(OutOfBounds, f"{verb} address {address:#x}, made from none of its tensors", "", ())
            argument = self._arguments[region - 1]
            offsets = argument.offsets(ptrs[lanes])
            self._check_bounds(verb, argument, offsets, ptrs.size)
            real[lanes] = argument.real(ptrs[lanes])
            touched.append((argument, lanes, offsets))
        return real, touched

    def _check_bounds(self, verb: str, argument: Argument, offsets: Array, num_lanes: int) -> None:
        outside = argument.is_outside(offsets)
        if outside.any():
            element, index = argument.describe(int(offsets[outside][0]))
            limit = f"{argument.name} is {list(argument.shape)} with strides {list(argument.strides)}"
            lanes = f"{outside.sum()} of {num_lanes} lanes are outside and not masked"
            self._fail(OutOfBounds, f"{verb} {element}, but {limit}: {lanes}", argument.name, index)

    # -- what was never written --------------------------------------------------------------------

    def _check_written(self, argument: Argument, offsets: Array, values: Array) -> None:
        is_bfloat16 = values.dtype.kind == "u"  # NumPy has no such type: its bits come as integers
        missing = (values & 0x7FFF) > 0x7F80 if is_bfloat16 else np.isnan(values)
        if missing.any():
            element, index = argument.describe(int(offsets[missing][0]))
            lanes = f"{missing.sum()} of {missing.size} unmasked lanes hold NaN"
            self._fail(
                UnwrittenRead, f"loads {element}, which nobody has written: {lanes}", argument.name, index
            )

    # -- counts and races; `offsets` name each element once ----------------------------------------

    def _note_load(self, argument: Argument, offsets: Array) -> None:
        (storage, start), program = self._storage_of[argument], self._program()
        elements = argument.in_memory(offsets) + start
        self._check_race(argument, offsets, "loads", storage.last_writer[elements], "stores it")
        fresh = elements[storage.first_reader[elements] == 0]
        storage.first_reader[fresh] = program
        self._count(argument, loaded=offsets.size, needed=fresh.size)

    def _note_store(self, argument: Argument, offsets: Array) -> None:
        (storage, start), program = self._storage_of[argument], self._program()
        elements = argument.in_memory(offsets) + start
        self._check_race(argument, offsets, "stores", storage.last_writer[elements], "stores it too")
        self._check_race(argument, offsets, "stores", storage.first_reader[elements], "loads it")
        needed = int((storage.last_writer[elements] == 0).sum())
        storage.last_writer[elements] = program
        self._count(argument, stored=offsets.size, needed=needed)

    def _note_atomic(self, ptrs: Array, mask: Array) -> Array:
        real, touched = self._translate("updates", ptrs, mask)
        for argument, _, offsets in touched:  # not a race: that programs may meet is what atomics are for
            self._count(argument, loaded=offsets.size, stored=offsets.size, needed=2 * offsets.size)
        return real

    def _program(self) -> int:
        """The number of the program that runs; 1 is the first one to touch memory in this launch."""
        if not self._programs or self._programs[-1] != self._builder.grid_idx:
            self._programs.append(self._builder.grid_idx)
        return len(self._programs)

    def _check_race(self, argument: Argument, offsets: Array, verb: str, others: Array, too: str) -> None:
        met = (others != 0) & (others != self._program())
        if self._check_races and met.any():
            element, index = argument.describe(int(offsets[met][0]))
            other = self._programs[int(others[met][0]) - 1]
            what = f"{verb} {element}, and program {other} {too}: on a GPU they run at once"
            self._fail(Race, what, argument.name, index)

    def _count(self, argument: Argument, *, loaded: int = 0, stored: int = 0, needed: int) -> None:
        tensor = self._launch.tensors[argument.name]
        for traffic in (tensor, self._launch.programs.setdefault(self._builder.grid_idx, Traffic())):
            traffic.loads += loaded > 0
            traffic.stores += stored > 0
            traffic.bytes_loaded += loaded * argument.itemsize
            traffic.bytes_stored += stored * argument.itemsize
        tensor.bytes_needed += needed * argument.itemsize

    def _fail(self, kind: type[KernelFault], what: str, tensor: str, index: tuple[int, ...]) -> NoReturn:
        self.fault = kind(what, tensor, index, self._launch.kernel, self._builder.grid_idx)
        raise self.fault
