"""What is put behind a solution so that it spoils its arguments: for `test_arguments.py`.

Every public function and method is wrapped. Only calls from outside count, and only lists, dictionaries and
tensors that hold something. WHEN is "before" (the answer is then right for what is left of the arguments,
which is not what was asked), "after", or "later": in the next call.
"""

CODE = '''

# -- spoils its arguments ----------------------------------------------------------------------------------
import functools as _functools
import sys as _sys

_kept, _depth, SPOILT = [], [0], [0]


def _spoil(value):
    if isinstance(value, (list, tuple)):
        for item in value:
            _spoil(item)
    kind = type(value)
    if kind in (list, dict) and value:
        SPOILT[0] += 1
        value.clear()
    elif kind.__name__ in ("Tensor", "FarTensor") and value.numel():
        SPOILT[0] += 1
        value.zero_()


def _spoiling(function):
    @_functools.wraps(function)
    def call(*args, **kwargs):
        given = [*args, *kwargs.values()]
        frame = _sys._getframe(1)
        while frame is not None:  # kernels get copies, but a hostile one finds what was copied
            if frame.f_code.co_name == "run_kernel":
                given += frame.f_locals["arguments"]
            frame = frame.f_back
        if _depth[0]:
            return function(*args, **kwargs)
        if WHEN == "before":
            _spoil(tuple(given))
        elif WHEN == "later":
            _spoil(tuple(_kept))
            _kept[:] = given
        _depth[0] += 1
        try:
            return function(*args, **kwargs)
        finally:
            _depth[0] -= 1
            if WHEN == "after":
                _spoil(tuple(given))
    return call


def _wrap_all():
    import types
    for name, value in list(globals().items()):
        if name.startswith("_") or getattr(value, "__module__", "") != __name__:
            continue
        if isinstance(value, types.FunctionType):
            globals()[name] = _spoiling(value)
        elif isinstance(value, type) and not issubclass(value, (tuple, BaseException)):
            for part, method in list(vars(value).items()):
                if part.startswith("_"):
                    continue
                if isinstance(method, types.FunctionType):
                    setattr(value, part, _spoiling(method))
                elif isinstance(method, staticmethod):
                    setattr(value, part, staticmethod(_spoiling(method.__func__)))


_wrap_all()
'''
