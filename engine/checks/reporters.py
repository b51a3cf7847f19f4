"""Reporters of transformers: their names, and the packages and variables that each needs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from ...core.findings import Finding, advice, problem

MODULES: Mapping[str, tuple[str, ...]] = {
    "azure_ml": ("azureml.core",),
    "dagshub": ("dagshub", "mlflow"),
    "flyte": ("flytekit",),
    "kubeflow": (),
    "tensorboard": ("tensorboard|tensorboardX",),
}
"""Modules that a reporter needs if they have another name than the reporter; | separates alternatives."""
PACKAGES: Mapping[str, str] = {"azureml.core": "azureml-core", "comet_ml": "comet-ml"}
"""Names for pip that differ from those of the modules."""
VARIABLES: Mapping[str, str] = {"dagshub": "MLFLOW_TRACKING_URI", "kubeflow": "KUBEFLOW_TRAINER_SERVER_URL"}
"""Environment variables without which a reporter does not know where to report."""
NO_REPORTER = (
    "Report to: 'all' has no effect because no reporting tool is installed. Install one (pip install "
    "tensorboard), or choose none."
)


def reporter_problems(names: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a problem for each reporter that is unknown or lacks something; "all" are those that lack nothing."""
    for name in names:
        if name == "all":
            from transformers.integrations import get_available_reporting_integrations

            if not get_available_reporting_integrations():
                yield advice("report_to", NO_REPORTER)
        elif reason := _reason(name):
            yield problem("report_to", f"Report to: {reason}, or choose none.")


def _reason(name: str) -> str:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    if name not in INTEGRATION_TO_CALLBACK:
        known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
        return f"transformers has no reporting integration called {name!r}. Choose one of {known}"
    if missing := [module for module in MODULES.get(name, (name,)) if not any(map(_has, module.split("|")))]:
        packages = " ".join(PACKAGES.get(module, module).partition("|")[0] for module in missing)
        return f"{name} is not installed. Install it (pip install {packages})"
    if (variable := VARIABLES.get(name)) and variable not in os.environ:
        return f"{name} needs the environment variable {variable}. Set it"
    return ""


def _has(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module is in
        return False
