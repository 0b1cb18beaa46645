# Starts a verifiers server and gives the tasks of its environment (docs/design/verifiers.md).
#
# python -c TEXT OPTIONS: OPTIONS is a JSON object with id, path, shuffle, args, serves, num_workers and
# address.
import json
import sys


def main():
    options = json.loads(sys.argv[1])
    if options["path"]:
        sys.path.insert(0, options["path"])
    try:
        import verifiers  # noqa: F401
    except ImportError as missing:
        sys.exit(f"{sys.executable} has no package verifiers: {missing}")
    sys.exit(f"this version cannot serve the environment {options['id']}")


main()
