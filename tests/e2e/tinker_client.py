"""What a client of Tinker's SDK sees of a run, as one line of JSON. tinker_test.cc judges it.

    tinker_client.py URL KEY train|lists|refused
"""

import json
import os
import pathlib
import sys

os.environ["TINKER_BASE_URL"], os.environ["TINKER_API_KEY"] = sys.argv[1], sys.argv[2]
os.environ["TINKER_TELEMETRY"] = "0"
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "examples/tinker"))

import rl_loop
import tinker
from tinker import types

BASE = "demo/characters"


def sample(sampling, tokens, **params):
    return sampling.sample(
        prompt=types.ModelInput.from_ints(tokens), num_samples=2,
        sampling_params=types.SamplingParams(max_tokens=6, seed=3, **params)).result()


def train():
    service = tinker.ServiceClient()
    seen = {"models": [each.model_name for each in
                       service.get_server_capabilities().supported_models]}
    training = rl_loop.ready(service.create_lora_training_client(base_model=BASE, rank=8))
    info = training.get_info()
    seen["rank"] = info.lora_rank
    tokenizer = training.get_tokenizer()
    seen["losses"] = rl_loop.supervised(training, tokenizer, 12)
    saved = training.save_state("trained").result().path
    path = training.save_weights_for_sampler("trained").result().path
    seen["paths"] = [saved, path]
    sampling = rl_loop.ready(service.create_sampling_client(model_path=path))
    tokens = tokenizer.encode("the c", add_special_tokens=False)
    first = sample(sampling, tokens, temperature=1.0)
    seen["samples"] = [len(each.tokens) for each in first.sequences]
    # Training continues, and the snapshot stays as it is.
    seen["loss_after_save"] = rl_loop.supervised(training, tokenizer, 2)[0]
    again = sample(sampling, tokens, temperature=1.0)
    seen["same"] = [each.tokens for each in first.sequences] == [
        each.tokens for each in again.sequences]
    greedy = sample(sampling, tokens, temperature=0.0)
    seen["text"] = tokenizer.decode(greedy.sequences[0].tokens)
    seen["prompt_logprobs"] = len(sampling.compute_logprobs(
        types.ModelInput.from_ints(tokens)).result())
    training.load_state_with_optimizer(saved).result()
    seen["loss_after_load"] = rl_loop.supervised(training, tokenizer, 1)[0]
    seen["rewards"] = rl_loop.reinforced(training, tokenizer, 3, group_size=4)
    return seen


def lists():
    """The base model's samples, stop texts, and the RestClient."""
    service = tinker.ServiceClient()
    base = rl_loop.ready(service.create_sampling_client(base_model=BASE))
    training = rl_loop.ready(service.create_lora_training_client(base_model=BASE, rank=8))
    tokenizer = training.get_tokenizer()
    tokens = tokenizer.encode("the c", add_special_tokens=False)
    before = [each.tokens for each in sample(base, tokens, temperature=0.0).sequences]
    rl_loop.supervised(training, tokenizer, 12)
    after = [each.tokens for each in sample(base, tokens, temperature=0.0).sequences]
    saved = training.save_state("listed").result().path
    path = training.save_weights_for_sampler("listed").result().path
    trained = rl_loop.ready(service.create_sampling_client(model_path=path))
    greedy = [each.tokens for each in sample(trained, tokens, temperature=0.0).sequences]
    stopped = sample(trained, tokens, temperature=0.0, stop=[tokenizer.decode(greedy[0])[3]])
    rest = service.create_rest_client()
    run = saved.removeprefix("tinker://").split("/")[0]
    info = rest.get_weights_info_by_tinker_path(saved).result()
    listed = rest.list_checkpoints(run).result().checkpoints
    seen = {"base_is_same": before == after,
            "trained_is_other": before != greedy,
            "stop_reasons": sorted({each.stop_reason for each in stopped.sequences}),
            "stopped": tokenizer.decode(stopped.sequences[0].tokens),
            "runs": [each.training_run_id for each in
                     rest.list_training_runs().result().training_runs],
            "run": rest.get_training_run(run).result().training_run_id,
            "rank": info.lora_rank,
            "weights": sorted(each.tinker_path for each in listed),
            "all": len(rest.list_user_checkpoints().result().checkpoints),
            "session": rest.get_session(run.split(":")[0]).result().training_run_ids}
    rest.set_checkpoint_ttl_from_tinker_path(saved, 86400).result()
    rest.delete_checkpoint_from_tinker_path(saved).result()
    seen["left"] = [each.checkpoint_id for each in
                    rest.list_checkpoints(run).result().checkpoints]
    seen["rewards"] = rl_loop.reinforced(training, tokenizer, 2, group_size=4)
    return seen


def refused():
    service = tinker.ServiceClient()
    try:
        rl_loop.ready(service.create_lora_training_client(base_model=BASE, rank=4))
    except Exception as error:  # what kind depends on the version
        return {"error": str(error)}
    return {"error": "none"}


print(json.dumps({"train": train, "lists": lists, "refused": refused}[sys.argv[3]]()), flush=True)
