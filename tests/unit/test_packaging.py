"""From the sources to an sdist, to a wheel, to an installation that runs from any directory."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
PARTS = ("engine", "ipc_ext", "postprocess", "server", "workers")
PATIENCE = 240
NOT_SOURCES = shutil.ignore_patterns(
    ".?*", "__pycache__", "*.so", "*.egg-info", "build", "dist", "out", "bin"
)


def run(*command, cwd):
    """Run a command outside of the repository, without its environment's say in imports."""
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Build an sdist of a copy of the sources, and a wheel from the sdist, without the network."""
    folder = tmp_path_factory.mktemp("packaging")
    sources = folder / "sources"
    shutil.copytree(ROOT, sources, ignore=NOT_SOURCES)
    # -P: the repository's build.py must not be taken for the module of this name.
    run(
        *(sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", folder, sources),
        cwd=folder,
    )
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """Install the wheel into an environment of its own and return that environment's `bin`."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    site_packages = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    )
    # The dependencies are those of this environment, but not its installation of sidestream.
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    Path(site_packages.strip(), "dependencies.pth").write_text("\n".join(dependencies))
    _, wheel = distributions
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    run(*pip, wheel, cwd=folder)
    return python.parent


def test_the_wheel_is_for_every_python_from_3_11(distributions):
    _, wheel = distributions
    assert "-cp311-abi3-linux" in wheel.name


def test_the_wheel_holds_the_parts_and_nothing_else(distributions):
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        names = [Path(name) for name in archive.namelist()]
    tops = {name.parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sidestream"}
    assert {name.parts[1] for name in names if name.parts[0] == "sidestream"} == set(PARTS)
    assert Path("sidestream/ipc_ext/_ring.abi3.so") in names
    assert Path("sidestream/ipc_ext/_ring.pyi") in names
    for part in PARTS:
        assert Path("sidestream", part, "py.typed") in names
    weights = [name for name in names if name.suffix == ".safetensors"]
    assert weights
    assert all(Path("sidestream/workers/models/shapes/weights") in name.parents for name in weights)
    assert not {name for name in names if name.name in ("build.py", "setup.py")}
    assert not {name for name in names if name.suffix in (".c", ".h")}


def test_every_module_of_the_sources_is_in_the_wheel(distributions):
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("sidestream/") for name in archive.namelist()}
    sources = {str(p.relative_to(ROOT)) for part in PARTS for p in (ROOT / part).rglob("*.py")}
    assert sources <= packed


def test_the_page_is_in_the_wheel(distributions):
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("sidestream/server/page/")}
    assert packed == {f"sidestream/server/page/{p.name}" for p in (ROOT / "server/page").iterdir()}


def test_the_sdist_can_be_built_from(distributions):
    sdist, _ = distributions
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"build.py", "setup.py", "pyproject.toml", "LICENSE"} <= names
    assert any(name.startswith("ipc_ext/csrc/") and name.endswith(".h") for name in names)


def test_an_installed_wheel_runs_from_any_directory(installed, tmp_path):
    assert run(installed / "sidestream", "--version", cwd=tmp_path).startswith("sidestream 0.")
    done = subprocess.run(
        [installed / "python", "-m", "sidestream.workers"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "python -m sidestream.workers" in done.stderr
    out = run(
        *(installed / "sidestream", "generate", "a large red circle on a white background"),
        *("--executor", "mp", "--device", "cpu", "--seed", 1, "-o", "pictures"),
        cwd=tmp_path,
    )
    with Image.open(tmp_path / out.strip()) as image:
        assert image.size == (128, 128)


def test_no_part_is_imported_under_a_second_name(installed, tmp_path):
    code = (
        "import sys, sidestream.engine.cli, sidestream.workers.worker_proc as worker\n"
        f"assert worker.__file__.startswith({str(installed.parent)!r}), worker.__file__\n"
        f"print([name for name in {PARTS} if name in sys.modules])"
    )
    assert run(installed / "python", "-c", code, cwd=tmp_path).strip() == "[]"
    here = f"import sys, sidestream.engine\nprint([n for n in {PARTS} if n in sys.modules])"
    assert run(sys.executable, "-c", here, cwd=ROOT).strip() == "[]"
