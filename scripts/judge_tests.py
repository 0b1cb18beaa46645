"""judge_tests.py FOLDER SKIPS [complete]: what FOLDER/tests.xml, CTest's report, says.

Prints the end of the output of the first failed tests, each test that was skipped and is not in
the list SKIPS, then one line 'N passed, N failed'; exits with 1 when there is such a test, or one
that failed. Where CTest ran whole programs (the
sanitizers), their own reports in FOLDER/gtest/ say what became of each test. `complete`: all tests
were chosen, so a line of the list that fits none of them is a fault as well.
"""
import fnmatch
import pathlib
import sys
import xml.etree.ElementTree


FAILURES_MAX = 5  # whose output is printed again
OUTPUT_LINES_MAX = 20


def read_list(path):
    """[(pattern, reason)]: a line is 'NAME: reason', and a '*' stands for any characters."""
    lines = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, reason = line.partition(": ")
        if not colon or not reason.strip():
            sys.exit(f"{path}:{number}: a line is 'NAME: reason', not '{line}'")
        lines.append((name, reason.strip()))
    return lines


def cases_of(report, prefix):
    """(name, 'passed' | 'failed' | 'skipped') of every <testcase>."""
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = (case.get("classname") + "." if prefix else "") + case.get("name")
        if case.find("failure") is not None or case.get("status") == "fail":
            yield name, "failed"
        elif (case.find("skipped") is not None or case.get("status") in ("disabled", "notrun")
              or case.get("result") in ("skipped", "suppressed")):
            yield name, "skipped"
        else:
            yield name, "passed"


def all_cases(folder):
    for name, end in cases_of(folder / "tests.xml", prefix=False):
        inner = folder / "gtest" / f"{name}.xml"
        if not inner.exists():
            yield name, end
            continue
        try:
            ends = list(cases_of(inner, prefix=True))
        except xml.etree.ElementTree.ParseError:  # it died while it wrote
            ends, end = [], "failed"
        yield from ends
        # All its tests passed, but the program failed at its end: a leak, or a crash.
        if end == "failed" and all(each != "failed" for _, each in ends):
            yield name, "failed"


def print_failures(folder):
    """CTest prints an output where the test ran, thousands of lines above the end."""
    cases = xml.etree.ElementTree.parse(folder / "tests.xml").iter("testcase")
    failed = [case for case in cases
              if case.find("failure") is not None or case.get("status") == "fail"]
    for case in failed[:FAILURES_MAX]:
        print(f"--- {case.get('name')} failed; its output ends with:")
        lines = (case.findtext("system-out") or "(nothing)").strip().splitlines()
        print("\n".join(lines[-OUTPUT_LINES_MAX:]))
    if len(failed) > FAILURES_MAX:
        print(f"--- {len(failed) - FAILURES_MAX} more failed; {folder}/tests.xml has their output")


def main(folder, skips, complete):
    allowed = read_list(skips)
    cases = list(all_cases(folder))
    fits = lambda name, pattern: fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
    faults = [f"'{name}' was skipped, which {skips} does not allow" for name, end in cases
              if end == "skipped" and not any(fits(name, pattern) for pattern, _ in allowed)]
    if complete:
        faults += [f"{skips}: no test is called '{pattern}'" for pattern, _ in allowed
                   if not any(fits(name, pattern) for name, _ in cases)]
    print_failures(folder)
    for fault in faults:
        print(f"tests: error: {fault}", file=sys.stderr)
    count = lambda what: sum(end == what for _, end in cases)
    line = f"{count('passed')} passed, {count('failed')} failed"
    if count("skipped"):
        line += f", {count('skipped')} skipped"
    print(line, flush=True)
    return 1 if faults or count("failed") else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), "complete" in sys.argv[3:]))
