"""Adds up the reports of a test run, and prints in one line the numbers of passed, failed and skipped tests."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def cases(report: Path) -> list[str]:
    """Returns the outcome of each test case of a JUnit report of GoogleTest, ctest or pytest."""
    outcomes = []
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
            outcomes.append("failed")
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            outcomes.append("skipped")
        else:
            outcomes.append("passed")
    return outcomes


def main() -> int:
    reports = Path(sys.argv[1])
    outcomes: list[str] = []
    for report in sorted(reports.glob("*/*.xml")) + sorted(reports.glob("pytest.xml")):
        outcomes += cases(report)
    # A GoogleTest program counts by its cases. The program itself counts only if it died before writing a report.
    for report in sorted(reports.glob("ctest-*.xml")):
        written = {path.stem for path in (reports / report.stem.removeprefix("ctest-")).glob("*.xml")}
        for case in ElementTree.parse(report).iter("testcase"):
            if case.get("name") not in written:
                outcomes.append("failed" if case.get("status") == "fail" else "passed")
    counts = {outcome: outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")}
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    return 0 if counts["failed"] == 0 and counts["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
