"""Links, options, paths, tables and the picture of the imports in the documentation agree with the code."""

from __future__ import annotations

import ast
import configparser
import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections import Counter, defaultdict
from pathlib import Path
from unittest import mock

import pytest
from support.jobs import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^a-z0-9 _-]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_link_targets_exist(page):
    text = page.read_text()
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    for target in targets:
        path, _, anchor = target.partition("#")
        if "://" not in target:
            other = page.parent / path if path else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(other), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_are_called_by_the_page_that_they_lead_to(page):
    """A text such as `data.md` names the page; a text in words may say anything."""
    for text, target in re.findall(r"\[`?([\w./-]+\.md)`?\]\(([^)\s]+)\)", page.read_text()):
        path = target.partition("#")[0]
        assert Path(text).name == (Path(path).name or page.name), f"{page.name}: [{text}]({target})"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_row_and_no_word_is_there_twice(page):
    """A row of a table, or its first cell where this is code; a word after itself, outside of code."""
    lines = page.read_text().splitlines()
    text = re.sub(r"^<!-- launch: .*?^<!-- end -->", "", page.read_text(), flags=re.M | re.S)  # options by launcher
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        rows = table.splitlines()[2:]
        keys = [row for row in rows if row.strip("| ")] + re.findall(r"^\| (`[^|`]*`) \|", "\n".join(rows), re.M)
        assert [key for key, count in Counter(keys).items() if count > 1] == []
    prose = "\n".join(line for line in lines if not line.startswith(("    ", "| ")))
    prose = re.sub(r"^```.*?^```|`[^`]*`", "CODE", prose, flags=re.M | re.S)
    assert re.findall(r"\b([a-z]+)[ \n]\1\b", prose) == []


def test_the_index_lists_each_page_once():
    index = ROOT / "docs" / "index.md"
    entries = [line for block in re.findall(r"^```{toctree}\n(.*?)^```", index.read_text(), re.M | re.S)
               for line in block.splitlines() if line and not line.startswith(":")]  # fmt: skip
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING"))]
    folders = ("examples", "tests/faults", "tests/horovod_suite")
    wanted = [*pages, ROOT / "SECURITY.md", *(ROOT / folder / "README.md" for folder in folders)]
    assert sorted((index.parent / f"{entry}.md").resolve() for entry in entries) == sorted({*wanted} - {index})
    assert "](docs/index.md)" in (ROOT / "README.md").read_text()


def test_paths_named_in_pages_exist():
    """All paths in the pages for contributors, such as `launch/agent.py`; elsewhere `hvdtrain/...` and `tests/...`."""
    frameworks = ("torch", "mxnet", "tensorflow")
    for page in PAGES:
        own = page.name in ("CONTRIBUTING.md", "architecture.md")
        for name in re.findall(r"`([\w<>*.-]*/[\w<>*./-]*|[\w*]+\.py)`", page.read_text()):
            if own or name.startswith(("hvdtrain/", "tests/")):
                for path in {name.replace("<framework>", framework) for framework in frameworks}:
                    found = [*ROOT.glob(path), *(ROOT / "hvdtrain").glob(path)]
                    assert found, f"{page.name}: {name}"


def test_extras_that_pages_name_exist():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    for page in PAGES:
        for names in re.findall(r"hvdtrain\[([\w,-]+)\]", page.read_text()):
            assert set(names.split(",")) <= extras.keys(), f"{page.name}: {names}"


def test_doctor_page_lists_all_checks():
    from hvdtrain.doctor.examination import CHECKS

    rows = [
        f"| `{check.name}` | {check.topic} | {check.about}{', in a job' * (check.where == 'job')} |" for check in CHECKS
    ]
    page = (ROOT / "docs" / "doctor.md").read_text().partition("\n## Checks\n")[2].partition("\n## ")[0].splitlines()
    assert [line for line in page if line.startswith("| `") and line.count("|") == 4] == rows


def test_reference_lists_all_commands():
    from hvdtrain.cli import COMMANDS

    page = (ROOT / "docs" / "reference.md").read_text()
    assert [command for command in COMMANDS if f"| `python -m hvdtrain {command}" not in page] == []


def test_reference_has_the_options_and_exit_statuses_of_the_code():
    from hvdtrain import errors

    runpy.run_path(str(ROOT / "docs" / "options.py"))["main"](["--check"])
    kinds = [kind for kind in vars(errors).values() if hasattr(kind, "exit_status")]
    assert {str(kind.exit_status) for kind in kinds} <= errors.EXIT_STATUSES.keys()


def test_strategy_in_the_guide_is_that_of_the_code():
    page, package = (ROOT / "docs" / "strategies.md").read_text(), ROOT / "hvdtrain"
    (example,) = re.findall(r"```python\n(.*?)```", page, re.S)
    (entry,) = re.findall(r"^ {4}\"mpi\": GroupEntry\($.*?^ {4}\),$", page, re.M | re.S)
    assert example in (package / "collectives" / "combining.py").read_text()
    assert entry in (package / "frameworks" / "registry.py").read_text()


def test_guarantees_link_to_the_files_that_have_their_marks():
    """As far as their text shows it, which takes no time; the next test knows the tests that pytest finds."""
    page, marked, linked = ROOT / "docs" / "guarantees.md", defaultdict(set), defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r'mark\.guarantee\("([\w-]+)"\)', path.read_text()):
            marked[name].add(path)
    for name, cell in re.findall(r"^\| `([\w-]+)` \| .* \| (.*) \|$", page.read_text(), re.M):
        for test, file in re.findall(r"\[(\w+)\]\((.*?)\)", cell):
            path = (page.parent / file).resolve()
            linked[name].add(path)
            text = path.read_text() if path.exists() else ""
            assert f"def {test}(" in text and f'"{name}"' in text, f"{name}: {test}; run: make docs-guarantees"
    left_out = {name: files for name, files in marked.items() if not files <= linked[name]}
    assert not left_out, "run: make docs-guarantees"


@pytest.mark.matrix
@pytest.mark.needs("torch", "mxnet", "tensorflow")
def test_guarantees_name_the_tests_that_have_their_marks():
    """Each mark has a row, each row a test of `make test`, and the page names all of them."""
    command = [sys.executable, ROOT / "docs" / "guarantees.py", "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert checked.returncode == 0, checked.stderr


DOT = ROOT / "docs" / "architecture.dot"


def drawn_imports() -> dict[str, set[str]]:
    """The arrows between folders in the picture: folder, and those that it imports directly or through others."""
    cluster = DOT.read_text().partition("subgraph cluster_imports")[2].partition("subgraph")[0]
    arrows: dict[str, set[str]] = {}
    for left, right in re.findall(r"^ *([\w{} ]+?) -> ([\w{} ]+)$", cluster, re.M):
        for one in left.strip("{}").split():
            arrows.setdefault(one, set()).update(right.strip("{}").split())
    for _ in arrows:
        for reached in arrows.values():
            reached |= {far for near in reached for far in arrows.get(near, set())}
    return arrows


def test_architecture_picture_shows_the_imports():
    """Each import from folder to folder is an arrow or a chain of arrows of the picture."""
    package, drawn = ROOT / "hvdtrain", drawn_imports()

    def box(part: str) -> str:
        name = part.removesuffix(".py")
        boxes = {"system": "base", "errors": "base", "__main__": "entry", "__init__": "entry"}
        return "entry" if name.endswith("_lenet") else boxes.get(name, name)

    for path in package.rglob("*.py"):
        own = box(path.relative_to(package).parts[0])
        for other in re.findall(r"^ *(?:from|import) hvdtrain\.(\w+)", path.read_text(), re.M):
            assert box(other) in drawn.get(own, set()) | {own}, f"{path.relative_to(ROOT)} imports {other}"


def test_kubernetes_manifest_is_valid():
    import json

    import jsonschema
    import yaml

    job = yaml.safe_load((ROOT / "launch" / "mpijob.yaml").read_text())
    schema = json.loads((ROOT / "tests" / "mpijob.schema.json").read_text())
    jsonschema.validate(job, schema)
    spec = job["spec"]
    launcher, worker = (spec["mpiReplicaSpecs"][kind] for kind in ("Launcher", "Worker"))
    command = launcher["template"]["spec"]["containers"][0]["command"]
    assert int(command[command.index("-n") + 1]) == worker["replicas"] * spec["slotsPerWorker"]
    # The launcher is created when sshd of each worker answers, not before their names resolve.
    port = worker["template"]["spec"]["containers"][0]["readinessProbe"]["tcpSocket"]["port"]
    assert f" -p {port} " in (ROOT / "docker" / "sshd.sh").read_text()
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    for replicas in (launcher, worker):
        pod = replicas["template"]["spec"]
        mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    del spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    spec["slotsPerWorkers"] = 1  # a misspelt field is rejected
    with pytest.raises(jsonschema.ValidationError, match="slotsPerWorkers"):
        jsonschema.validate(job, schema)


def test_the_runs_in_the_pictures_of_the_web_page_can_be_made(tmp_path):
    pictures = runpy.run_path(str(ROOT / "docs" / "pictures" / "web.py"))
    pictures["make_runs"](tmp_path)
    assert {path.name for path in tmp_path.iterdir()} > {pictures["LIVE"], "resnet20-ddp-np4"}


PYTHON = re.compile(r"^(import \w|from \S+ import |class \w+|def \w+\(|with .*:$|if .*:( +#.*)?$|@\w+)", re.M)


def programs(page: Path) -> list[str]:
    """The Python programs of a page: indented, or in fences."""
    text, fence = page.read_text(), re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
    fenced = [block for language, block in fence.findall(text) if language == "python"]
    indented = re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))*)+", fence.sub("", text), re.M)
    return [block for block in map(textwrap.dedent, [*fenced, *indented]) if PYTHON.search(block)]


def test_programs_of_pages_compile_and_know_their_names(tmp_path):
    """A program may use what one above it on its page has imported or defined."""
    combining = (ROOT / "hvdtrain" / "collectives" / "combining.py").read_text()  # which a page quotes
    found = {page: [block for block in programs(page) if block not in combining] for page in PAGES}
    assert len(found[ROOT / "docs" / "own.md"]) + len(found[ROOT / "docs" / "own-loop.md"]) >= 5
    for number, (page, blocks) in enumerate(found.items()):
        for block in blocks:
            ast.parse(block)
        (tmp_path / f"{number}-{page.stem}.py").write_text("\n".join(blocks))
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,E9", tmp_path]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.needs("torch")
def test_the_task_and_the_loop_of_the_page_train(tmp_path, monkeypatch):
    import hvdtrain

    blocks = [*programs(ROOT / "docs" / "own.md"), *programs(ROOT / "docs" / "own-loop.md")]
    for name, mark in (("mytask.py", "class Task:"), ("script.py", "hvdtrain.start() as run")):
        (tmp_path / name).write_text(next(block for block in blocks if mark in block))
    monkeypatch.chdir(tmp_path)
    with mock.patch.dict(os.environ):
        task = runpy.run_path("mytask.py")["Task"](width=8)
        hvdtrain.fit(task, hvdtrain.Config(strategy="single", max_steps=3), hvdtrain.RuntimeOptions(name="task"))
        monkeypatch.setattr(sys, "argv", ["script.py", "--strategy", "single", "--max-steps", "3", "--name", "loop"])
        runpy.run_path("script.py", run_name="__main__")
    assert all((tmp_path / "runs" / name / "result.json").exists() for name in ("task", "loop"))
