#include "kernels/models/config_keys.h"

namespace primerl {
namespace {

/// Options of other families and of other programs, which read them in a folder of any family.
Status check_options(ConfigReader& reader) {
  for (const char* key :
       {"alibi", "attention_chunk_size", "attn_logit_softcapping", "audio_config", "clip_qkv",
        "dual_chunk_attention_config", "final_logit_softcapping", "interleaved_sliding_window",
        "layer_group_size", "logit_softcap", "logits_soft_cap", "parallel_attn", "pruned_heads",
        "text_config", "use_mrope", "use_parallel_residual", "vision_config"})
    RETURN_IF_ERROR(reader.must_be_off(key));
  for (const char* key : {"embedding_multiplier", "logit_scale", "logits_scaling",
                          "residual_multiplier", "scale_emb"})
    RETURN_IF_ERROR(reader.must_be(key, 1.0));
  const Json* layers = reader.find("no_rope_layers");
  if (layers == nullptr || !layers->is_array()) return reader.must_be_off("no_rope_layers");
  for (const Json& uses_rope : layers->as_array())
    if (uses_rope != Json(1) && uses_rope != Json(true))
      return error(Code::kInvalid,
                   "'no_rope_layers' has {}: layers without rotary embedding "
                   "are not supported",
                   uses_rope.dump());
  return ok();
}

Status check_activation(ConfigReader& reader) {
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const Json* given = reader.find(key);
    if (given == nullptr || *given == Json("silu") || *given == Json("swish")) continue;
    return error(Code::kInvalid, "'{}' is {}; only \"silu\" is supported", key, given->dump());
  }
  return ok();
}

}  // namespace

void ignore_descriptions(ConfigReader& reader) {
  reader.ignore({"model_type",
                 "architectures",
                 "name_or_path",
                 "transformers_version",
                 "dtype",
                 "torch_dtype",
                 "use_cache",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "return_dict_in_generate",
                 "output_scores",
                 "id2label",
                 "label2id",
                 "problem_type",
                 "finetuning_task",
                 "task_specific_params",
                 "tokenizer_class",
                 "is_decoder",
                 "tie_encoder_decoder",
                 "cross_attention_hidden_size",
                 "attn_implementation",
                 "torchscript",
                 "use_bfloat16",
                 "tf_legacy_loss",
                 "chunk_size_feed_forward",
                 "prefix",
                 "num_labels",
                 "classifier_dropout"});
  // Ids of tokens: the tokenizer has them.
  reader.ignore({"bos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "cls_token_id",
                 "mask_token_id", "decoder_start_token_id"});
  // Defaults of generate() in older releases of transformers.
  reader.ignore({"max_length",
                 "min_length",
                 "max_new_tokens",
                 "do_sample",
                 "early_stopping",
                 "num_beams",
                 "num_beam_groups",
                 "diversity_penalty",
                 "temperature",
                 "top_k",
                 "top_p",
                 "typical_p",
                 "repetition_penalty",
                 "length_penalty",
                 "no_repeat_ngram_size",
                 "encoder_no_repeat_ngram_size",
                 "bad_words_ids",
                 "num_return_sequences",
                 "forced_bos_token_id",
                 "forced_eos_token_id",
                 "remove_invalid_values",
                 "exponential_decay_length_penalty",
                 "suppress_tokens",
                 "begin_suppress_tokens"});
  // Notes of training and conversion programs. transformers computes the slices of
  // `pretraining_tp` as one GEMM.
  reader.ignore({"pretraining_tp", "unsloth_version", "unsloth_fixed", "use_flash_attn",
                 "use_flash_attention", "flash_attn", "gradient_checkpointing",
                 "use_gradient_checkpointing", "use_logn_attn_in_training", "model_max_length",
                 "max_sequence_length", "seq_length", "quantization_backup",
                 "transformers.js_config", "is_custom_code", "use_reentrant", "router_jitter_noise",
                 "keys_to_ignore_at_inference", "ignore_keys_at_rope_validation"});
}

Status check_arithmetic(ConfigReader& reader) {
  for (const char* key : {"quantization_config", "quantization", "compression_config"})
    if (!reader.must_be_off(key).ok())
      return error(Code::kInvalid, "its weights are quantized ('{}')", key)
          .note("use the folder with the bfloat16 weights");
  RETURN_IF_ERROR(check_activation(reader));
  RETURN_IF_ERROR(reader.must_be("attention_dropout", 0.0));
  RETURN_IF_ERROR(reader.must_be("is_encoder_decoder", false));
  RETURN_IF_ERROR(reader.must_be("add_cross_attention", false));
  return check_options(reader);
}

}  // namespace primerl
