"""The stack that this environment is, in one line, and frameworks that are none of the stacks."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from hvdtrain.config.options import TITLES
from hvdtrain.doctor.check import check
from hvdtrain.doctor.check_context import CheckContext
from hvdtrain.doctor.checks.horovod import build_parts
from hvdtrain.doctor.findings import Finding, ok, warn
from hvdtrain.system import stacks
from hvdtrain.system.stacks import STACKS, framework_version, installed_version, is_system_s, public_version


@check("software", "host")
def check_stack(context: CheckContext) -> Iterator[Finding]:
    """the stack that this environment is, and its versions in one line"""
    found = stacks.installed_frameworks()
    if not found:
        return  # the check `frameworks` reports it
    own = stacks.installed_stack()
    contents = ", ".join(_contents(context, found))
    if own is None:
        text = f"none of the stacks {', '.join(STACKS)}, so not tested: {contents}"
        yield warn(text, stacks.setup_command(stacks.stack_for_this_python()))
        return
    others = " and ".join(TITLES[name] for name in found if name not in own.frameworks)
    yield ok(f"stack {own.name}: {contents}" + (f"; {others} is not part of this stack" if others else ""))


def _contents(context: CheckContext, frameworks: tuple[str, ...]) -> Iterator[str]:
    yield f"Python {platform.python_version()}"
    for name in frameworks:
        yield f"{TITLES[name]} {framework_version(name)}" + " of the machine" * is_system_s(name)
    if version := installed_version("numpy"):
        yield f"NumPy {version}"
    if version := public_version("horovod"):
        parts = build_parts(context)
        yield f"Horovod {version}" + (f" ({', '.join(parts)})" if parts else "")
    else:
        yield "no Horovod"
