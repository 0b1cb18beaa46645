"""Training steps of TRL's SFTTrainer on the CPU: rows of a JSONL file, fp32, AdamW, no checkpointing of activations.

    trl_sft.py --model DIR --data FILE [--rows 16] [--steps 5] [--threads 2] [--max-length 256]

Prints one JSON line: seconds of each step and their spread, user CPU seconds of each step, tokens of a step. The first
step is not counted.
"""
import argparse
import os
import tempfile
import time

from common import emit, machine, peak_rss_mib, spread


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=256)
    chosen = parser.parse_args()
    import torch
    torch.set_num_threads(chosen.threads)
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Clock(TrainerCallback):
        seconds, cpu = [], []

        def on_step_begin(self, *_, **__):
            self.begin, self.used = time.perf_counter(), os.times().user

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.begin)
            self.cpu.append(os.times().user - self.used)

    model = AutoModelForCausalLM.from_pretrained(chosen.model, dtype=torch.float32)
    config = SFTConfig(output_dir=tempfile.mkdtemp(), per_device_train_batch_size=chosen.rows, max_steps=chosen.steps + 1,
                       max_length=chosen.max_length, learning_rate=1e-5, bf16=False, use_cpu=True, report_to=[],
                       gradient_checkpointing=False, save_strategy="no", logging_steps=1, dataset_num_proc=1,
                       disable_tqdm=True)
    trainer = SFTTrainer(model=model, args=config, train_dataset=load_dataset("json", data_files=chosen.data)["train"],
                         processing_class=AutoTokenizer.from_pretrained(chosen.model), callbacks=[Clock()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    logged = [row for row in trainer.state.log_history if "num_tokens" in row]
    used = os.times()
    emit(peer="trl", step_seconds=spread(Clock.seconds[1:]), steps=Clock.seconds[1:], step_cpu=Clock.cpu[1:],
         tokens_per_step=round(logged[-1]["num_tokens"] / len(logged)), losses=[row["loss"] for row in logged],
         system_share=round(used.system / (used.system + used.user), 3), peak_mib=peak_rss_mib(),
         **machine("torch", "transformers", "trl"))


if __name__ == "__main__":
    main()
