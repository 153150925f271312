"""The same readers under coverage-guided fuzzing, where Atheris can be installed.

    pip install atheris
    python tests/fuzz/with_atheris.py cifar -runs=100000

The first argument names a target of `test_files.py`; the others are libFuzzer's.
"""

import runpy
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    """Fuzz one target until libFuzzer's limits; an unexpected exception ends it."""
    import atheris

    with atheris.instrument_imports(include=["tailshift"]):
        import tailshift  # noqa: F401 (only what is imported here is instrumented)
    here = Path(__file__).parent
    target = runpy.run_path(str(here / "test_files.py"))["TARGETS"][sys.argv.pop(1)]
    check_sentence = runpy.run_path(str(here / "conftest.py"))["check_sentence"]
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        path = Path(folder) / target.name
        (Path(folder) / "corpus").mkdir()
        (Path(folder) / "corpus" / "valid").write_bytes(target.valid)

        def read(content: bytes) -> None:
            path.unlink(missing_ok=True)
            path.write_bytes(content)
            try:
                target.read(path)
            except (ValueError, OSError, ImportError) as error:
                check_sentence(error)

        atheris.Setup([*sys.argv, str(Path(folder) / "corpus")], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
