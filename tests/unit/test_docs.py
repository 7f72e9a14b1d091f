"""The documentation speaks of what is there."""

from __future__ import annotations

import ast
import re

import pytest
from support.jobs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
VARIES = re.compile(
    r"\.\.\.|[0-9]+(?:\.[0-9]+)*|node[12]|runs/NAME|SIG[A-Z]+|\b(?:mpirun|torchrun|torch|mxnet|mnist|MPI|dense2\.bias)\b"
    r"|train\.npz|\[pytorch\]|--seed|\(.*?\)|each process thinks it is alone|rank (?=[0-9])"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def said_by_the_code() -> str:
    """All texts of the package, with a mark where a value is put in."""
    texts = []
    for path in (ROOT / "hvdtrain").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
    return "\n".join(texts)


def test_messages_that_are_explained_are_those_of_the_code():
    code = said_by_the_code()
    explained = re.findall(r"\*\*`(.+?)`\*\*", (ROOT / "docs" / "messages.md").read_text())
    assert len(explained) > 25
    for message in explained:
        pieces = [piece.strip(" ;:,'") for piece in VARIES.split(message)]
        pieces = [piece for piece in pieces if len(piece) > 8]
        assert pieces, message
        for piece in pieces:
            assert piece in code, f"{message}: nobody says {piece!r}"


def test_commands_of_the_pages_have_options_that_exist():
    """Options of launch and of training, in lines that start them."""
    import contextlib
    import io

    from hvdtrain.cli import launch
    from hvdtrain.cli.training_options import parse

    known = io.StringIO()
    for words in (["local"], ["horovodrun"], ["mpirun"], ["srun"], ["sbatch"]):
        with contextlib.redirect_stdout(known), contextlib.suppress(SystemExit):
            launch.parse([*words, "--help"])
    with contextlib.redirect_stdout(known), contextlib.suppress(SystemExit):
        parse(["--help"], "program", None, console=True)
    options = set(re.findall(r"--[a-z][a-z-]*", known.getvalue()))
    for page in PAGES:
        for line in re.findall(r"^    (python -m hvdtrain (?:launch|train).*|.*_lenet .*)$", page.read_text(), re.M):
            ours = line[line.index("python -m hvdtrain") :].partition("#")[0]
            for option in re.findall(r"(?<=\s)--[a-z][a-z-]*", ours):
                assert option in options | {"--hosts"}, f"{page.name}: {line}"


def test_the_doctor_s_page_lists_its_checks():
    from hvdtrain.cli.doctor import CHECKS, TOGETHER

    rows = [f"| `{one.name}` | {one.topic} | {one.about} |" for one in CHECKS]
    rows += [f"| `{name}` | job | {about}, in a job |" for name, about in TOGETHER.items()]
    page = (ROOT / "docs" / "doctor.md").read_text().partition("\n## Checks\n")[2].splitlines()
    assert [line for line in page if line.startswith("| `") and line.count("|") == 4] == rows


def test_the_manifest_for_kubernetes_is_valid():
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
    for replicas in (launcher, worker):
        pod = replicas["template"]["spec"]
        mounted = {mount["name"] for one in pod["containers"] for mount in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    del spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    spec["slotsPerWorkers"] = 1  # a slip of the pen is noticed
    with pytest.raises(jsonschema.ValidationError, match="slotsPerWorkers"):
        jsonschema.validate(job, schema)
