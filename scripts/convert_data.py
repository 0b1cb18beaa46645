"""Makes a JSONL file of a Parquet, Arrow or CSV file.

    python convert_data.py FILE OUT

Reads and writes a batch of rows at a time, so memory does not grow with the file. OUT appears when
it is complete. Parquet and Arrow need the package pyarrow. `primerl-graph data convert` runs this
script.
"""
import base64
import csv
import datetime
import decimal
import importlib.util
import json
import math
import os
import pathlib
import sys
import uuid

BATCH_ROWS = 256
FIELD_BYTES_MAX = 64 << 20  # of one value of a CSV file
SUFFIXES = (".parquet", ".arrow", ".feather", ".csv")


def refuse(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def check_pyarrow(source):
    if importlib.util.find_spec("pyarrow") is None:
        refuse(f"the Python {sys.executable} has no package pyarrow, which reads '{source}'\n"
               f"  {sys.executable} -m pip install pyarrow\n"
               "  or name another Python in PRIMERL_PYTHON")


def parquet_rows(source):
    check_pyarrow(source)
    import pyarrow.parquet
    with pyarrow.parquet.ParquetFile(source) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()


def arrow_rows(source):
    """The file format begins with "ARROW1"; the other one is the stream format."""
    check_pyarrow(source)
    import pyarrow
    with pyarrow.memory_map(str(source)) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        if is_file:
            reader = pyarrow.ipc.open_file(file)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            batches = iter(pyarrow.ipc.open_stream(file))
        for batch in batches:
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                yield from batch.slice(begin, BATCH_ROWS).to_pylist()


def csv_rows(source):
    csv.field_size_limit(FIELD_BYTES_MAX)
    with open(source, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        names = next(reader, None)
        if not names:
            refuse(f"'{source}' has no header")
        for name in names:
            if names.count(name) > 1:
                refuse(f"'{source}': the header has '{name}' twice")
        for values in reader:
            if not values:
                continue
            if len(values) != len(names):
                refuse(f"'{source}':{reader.line_num}: the row has {len(values)} values, the header"
                       f" has {len(names)} names")
            yield dict(zip(names, values))


def plain(value, path):
    """The value as JSON has it. `path` is for errors: "the column 'a'"."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON does not have")
        return value
    if isinstance(value, dict):
        return {str(key): plain(each, f"{path}.{key}") for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        # A map of Parquet is a list of pairs.
        return [plain(each, f"{path}[{i}]") for i, each in enumerate(value)]
    if isinstance(value, (datetime.date, datetime.datetime, datetime.time)):
        return value.isoformat()
    if isinstance(value, (decimal.Decimal, uuid.UUID)):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise ValueError(f"{path} is of type {type(value).__name__}, which JSON does not have")


def rows_of(source):
    with open(source, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PAR1"):
        return parquet_rows(source)
    if magic == b"ARROW1" or source.suffix in (".arrow", ".feather"):
        return arrow_rows(source)
    if source.suffix == ".csv":
        return csv_rows(source)
    if source.suffix == ".parquet":
        refuse(f"'{source}' is no Parquet file: it does not begin with PAR1")
    refuse(f"the name '{source}' ends with none of {', '.join(SUFFIXES)}")


def write(source, target):
    count = 0
    partial = target.with_name(target.name + ".partial")
    try:
        with open(partial, "w", encoding="utf-8", newline="\n") as out:
            for row in rows_of(source):
                count += 1
                try:
                    fields = {name: plain(value, f"column '{name}'") for name, value in row.items()}
                except ValueError as fault:
                    refuse(f"'{source}': row {count}: {fault}")
                out.write(json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n")
        if count == 0:
            refuse(f"'{source}' has no rows")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return count


def main():
    if len(sys.argv) != 3:
        refuse("usage: convert_data.py FILE OUT")
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if not source.is_file():
        refuse(f"there is no file '{source}'")
    if target.exists():
        refuse(f"'{target}' exists already\n  name another file with --out, or remove it")
    try:
        print(write(source, target))
    except (OSError, ValueError, csv.Error) as fault:  # pyarrow's errors are ValueErrors
        refuse(f"'{source}' cannot be converted: {fault}")


main()
