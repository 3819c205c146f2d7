"""Makes docs/versions.md, "Which version of what", from the results of runs in docs/measurements.

usage: python tools/docs/versions_page.py [--check]

`./dev compat --record` writes torch.json, `./dev clients` writes clients.json, and platforms.json has the results of
`./dev compat --python`, `./dev aarch64` and `./dev wheel`. With --check the page is compared and not written; exits
with 1 if it differs.
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"

COUNTS = ("passed", "skipped", "failed", "known")
HEAD = """# Which version of what

`tools/docs/versions_page.py` makes this page from the results of the runs in `docs/measurements`. A row is a run that
was made, with its date and command.
"""


def results(name: str) -> Any:
    return json.loads((ROOT / "docs" / "measurements" / f"{name}.json").read_text())


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def torch_versions() -> str:
    rows = [
        [run["torch"], run["date"], f"`{run['command']}`", run["tests"], *(str(run[key]) for key in COUNTS)]
        for run in sorted(results("torch")["results"], key=lambda run: [int(part) for part in run["torch"].split(".")])
    ]
    return (
        "## torch\n\n[Torch versions](torch-versions.md) has the differences, and the reason of each known failure.\n\n"
        + table(["torch", "date", "command", "tests", "passed", "skipped", "failed", "failed, known"], rows)
    )


def platforms() -> str:
    rows = []
    for run in results("platforms")["results"]:
        counts = f"{run['passed']} passed, {run['failed']} failed" if "passed" in run else "; ".join(run["lines"])
        rows.append([run["platform"], run["python"], run["torch"], run["date"], f"`{run['command']}`", counts])
    wheels = [
        [wheel["platform"], f"`{wheel['tag']}`", wheel["date"], f"`{wheel['command']}`"]
        for wheel in results("platforms")["wheels"]
    ]
    return (
        "## Pythons and processors\n\n[Installing](installing.md) describes the runs.\n\n"
        + table(["processor", "Python", "torch", "date", "command", "result"], rows)
        + "\n"
        + table(["wheel for", "tag", "date", "command"], wheels)
    )


def clients() -> str:
    rows = []
    for name, run in sorted(results("clients").items()):
        packages = ", ".join(f"{package} {version}" for package, version in sorted(run["packages"].items()))
        outcome = "passed" if run["passed"] else "failed"
        resumed = run.get("resumed after round")
        resumption = f"after round {resumed} of {run['rounds']}" if resumed else ""
        rows.append([f"`{name}`", packages, run["torch"], run["python"], run["date"], outcome, resumption])
    columns = ["`./dev clients` NAME", "packages", "torch", "Python", "date", "trial", "killed, and resumed bit-equal"]
    return "## Clients\n\n[Trials of the clients](client-trials.md) describes each.\n\n" + table(columns, rows)


def main() -> int:
    page = "\n".join([HEAD, torch_versions(), platforms(), clients()])
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is not the page of docs/measurements: run python tools/docs/versions_page.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
