"""The one thing that pyproject.toml can't say: the code of kernels/paged ships as minipaged.kernels.paged.

In a clone, `minipaged/kernels/__init__.py` finds that folder by itself. It is not mapped in pyproject.toml,
because then `pip install -e .` would install an import hook that Python asks last, and `import minipaged`
would fail in the folder above the clone, where the clone itself looks like a package without code.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

KERNELS = Path("kernels", "paged")


class BuildWithKernels(build_py):
    """Copies kernels/paged into the built package; an editable installation builds nothing."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._kernels().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *self._kernels().values()]

    def _kernels(self) -> dict[str, str]:
        target = Path(self.build_lib, "minipaged", "kernels", "paged")
        return {str(file): str(target / file.name) for file in sorted(KERNELS.glob("*.py"))}


setup(cmdclass={"build_py": BuildWithKernels})
