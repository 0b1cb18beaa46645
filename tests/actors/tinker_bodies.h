/// Bodies that the Tinker SDK sends, written by tests/actors/capture_tinker.py.
#pragma once

#include <string_view>
#include <vector>

namespace primerl::tinker {

struct CapturedBody {
  std::string_view sdk, route, body;
};

inline const std::vector<CapturedBody>& captured_bodies() {
  using namespace std::string_view_literals;
  static const std::vector<CapturedBody> all = {
      {"0.25.0"sv, "client/config"sv, "{\"sdk_version\":\"0.25.0\"}"sv},
      {"0.25.0"sv, "client/dynamic_config"sv, "{\"sdk_version\":\"0.25.0\"}"sv},
      {"0.25.0"sv, "create_session"sv,
       "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.25.0\",\"type\":\"create_s"
       "ession\"}"sv},
      {"0.25.0"sv, "create_model"sv,
       "{\"session_id\":\"session-1\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_"
       "config\":{\"rank\":8,\"seed\":7,\"train_unembed\":true,\"train_mlp\":true,\"trai"
       "n_attn\":true},\"type\":\"create_model\"}"sv},
      {"0.25.0"sv, "retrieve_future"sv, "{\"request_id\":\"r0\",\"allow_metadata_only\":true}"sv},
      {"0.25.0"sv, "get_info"sv, "{\"model_id\":\"session-1:train:0\",\"type\":\"get_info\"}"sv},
      {"0.25.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\001\032d\012\020\012\016\012\014\001\000\000\000"
       "\002\000\000\000\003\000\000\000\0220\012\015target_tokens\022\037\012\030\002"
       "\000\000\000\000\000\000\000\003\000\000\000\000\000\000\000\004\000\000\000\000"
       "\000\000\000\030\002\"\001\003\022\036\012\007weights\022\023\012\014\000\000"
       "\000\000\000\000\200\077\000\000\000\277\030\001\"\001\003\"\015cross_entropy"sv},
      {"0.25.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\002\032\210\001\012\020\012\016\012\014\001\000"
       "\000\000\002\000\000\000\003\000\000\000\022!\012\012advantages\022\023\012\014"
       "\000\000\000\000\000\000\000\077\000\000\000\077\030\001\"\001\003\0220\012\015t"
       "arget_tokens\022\037\012\030\002\000\000\000\000\000\000\000\003\000\000\000\000"
       "\000\000\000\004\000\000\000\000\000\000\000\030\002\"\001\003\022\037\012\010lo"
       "gprobs\022\023\012\014\000\000\000\000\000\000\200\277\000\000\000\300\030\001\""
       "\001\003\"\003ppo*\035\012\022clip_low_threshold\021ffffff\346\077"sv},
      {"0.25.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\003\032n\012\014\012\012\012\010\001\000\000\000"
       "\002\000\000\000\0229\012\015target_tokens\022(\012 \002\000\000\000\000\000\000"
       "\000\003\000\000\000\000\000\000\000\004\000\000\000\000\000\000\000\005\000\000"
       "\000\000\000\000\000\030\002\"\002\002\002\022#\012\007weights\022\030\012\020"
       "\000\000\200\077\000\000\000\000\000\000\000\077\000\000\200>\030\001\"\002\002"
       "\002\"\015cross_entropy0\001"sv},
      {"0.25.0"sv, "optim_step"sv,
       "{\"adam_params\":{\"learning_rate\":0.001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1"
       "e-12,\"weight_decay\":0.0,\"grad_clip_norm\":0.0},\"model_id\":\"session-1:train"
       ":0\",\"seq_id\":4,\"type\":\"optim_step\"}"sv},
      {"0.25.0"sv, "save_weights"sv,
       "{\"model_id\":\"session-1:train:0\",\"path\":\"step-1\",\"seq_id\":5,\"overwrite"
       "\":false,\"type\":\"save_weights\"}"sv},
      {"0.25.0"sv, "save_weights_for_sampler"sv,
       "{\"model_id\":\"session-1:train:0\",\"path\":\"snap\",\"seq_id\":6,\"type\":\"sa"
       "ve_weights_for_sampler\"}"sv},
      {"0.25.0"sv, "load_weights"sv,
       "{\"model_id\":\"session-1:train:0\",\"seq_id\":7,\"path\":\"tinker://session-1:t"
       "rain:0/weights/step-1\",\"optimizer\":false,\"type\":\"load_weights\"}"sv},
      {"0.25.0"sv, "save_weights_for_sampler"sv,
       "{\"model_id\":\"session-1:train:0\",\"sampling_session_seq_id\":0,\"seq_id\":8,"
       "\"type\":\"save_weights_for_sampler\"}"sv},
      {"0.25.0"sv, "asample"sv,
       "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3],\"type\":\"encode"
       "d_text\"}]},\"sampling_params\":{\"max_tokens\":4,\"seed\":3,\"stop\":[\"end\"],"
       "\"temperature\":0.5,\"top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"sessio"
       "n-1:sample:0\",\"seq_id\":0,\"prompt_logprobs\":true,\"topk_prompt_logprobs\":0,"
       "\"type\":\"sample\"}"sv},
      {"0.25.0"sv, "create_sampling_session"sv,
       "{\"session_id\":\"session-1\",\"sampling_session_seq_id\":1,\"base_model\":\"tin"
       "y\",\"type\":\"create_sampling_session\"}"sv},
      {"0.25.0"sv, "asample"sv,
       "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1],\"type\":\"encoded_te"
       "xt\"}]},\"sampling_params\":{\"max_tokens\":1,\"stop\":[],\"temperature\":1.0,\""
       "top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"session-1:sample:0\",\"seq_i"
       "d\":0,\"prompt_logprobs\":false,\"topk_prompt_logprobs\":0,\"type\":\"sample\"}"sv},
      {"0.38.0"sv, "client/config"sv, "{\"sdk_version\":\"0.38.0\"}"sv},
      {"0.38.0"sv, "client/dynamic_config"sv, "{\"sdk_version\":\"0.38.0\"}"sv},
      {"0.38.0"sv, "create_session"sv,
       "{\"tags\":[],\"user_metadata\":{},\"sdk_version\":\"0.38.0\",\"type\":\"create_s"
       "ession\"}"sv},
      {"0.38.0"sv, "create_model"sv,
       "{\"session_id\":\"session-1\",\"model_seq_id\":0,\"base_model\":\"tiny\",\"lora_"
       "config\":{\"rank\":8,\"seed\":7,\"train_unembed\":true,\"train_mlp\":true,\"trai"
       "n_attn\":true},\"optimizer_config\":{\"type\":\"adamw\"},\"type\":\"create_model"
       "\"}"sv},
      {"0.38.0"sv, "retrieve_future"sv, "{\"request_id\":\"r0\",\"allow_metadata_only\":true}"sv},
      {"0.38.0"sv, "get_info"sv, "{\"model_id\":\"session-1:train:0\",\"type\":\"get_info\"}"sv},
      {"0.38.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\001\032d\012\020\012\016\012\014\001\000\000\000"
       "\002\000\000\000\003\000\000\000\0220\012\015target_tokens\022\037\012\030\002"
       "\000\000\000\000\000\000\000\003\000\000\000\000\000\000\000\004\000\000\000\000"
       "\000\000\000\030\002\"\001\003\022\036\012\007weights\022\023\012\014\000\000"
       "\000\000\000\000\200\077\000\000\000\277\030\001\"\001\003\"\015cross_entropy"sv},
      {"0.38.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\002\032\210\001\012\020\012\016\012\014\001\000"
       "\000\000\002\000\000\000\003\000\000\000\022\037\012\010logprobs\022\023\012\014"
       "\000\000\000\000\000\000\200\277\000\000\000\300\030\001\"\001\003\022!\012\012a"
       "dvantages\022\023\012\014\000\000\000\000\000\000\000\077\000\000\000\077\030"
       "\001\"\001\003\0220\012\015target_tokens\022\037\012\030\002\000\000\000\000\000"
       "\000\000\003\000\000\000\000\000\000\000\004\000\000\000\000\000\000\000\030\002"
       "\"\001\003\"\003ppo*\035\012\022clip_low_threshold\021ffffff\346\077:\037\012"
       "\022clip_low_threshold\022\011\011ffffff\346\077"sv},
      {"0.38.0"sv, "forward_backward"sv,
       "\012\021session-1:train:0\020\003\032n\012\014\012\012\012\010\001\000\000\000"
       "\002\000\000\000\0229\012\015target_tokens\022(\012 \002\000\000\000\000\000\000"
       "\000\003\000\000\000\000\000\000\000\004\000\000\000\000\000\000\000\005\000\000"
       "\000\000\000\000\000\030\002\"\002\002\002\022#\012\007weights\022\030\012\020"
       "\000\000\200\077\000\000\000\000\000\000\000\077\000\000\200>\030\001\"\002\002"
       "\002\"\015cross_entropy0\001"sv},
      {"0.38.0"sv, "optim_step"sv,
       "{\"model_id\":\"session-1:train:0\",\"seq_id\":4,\"type\":\"optim_step\",\"adam_"
       "params\":{\"learning_rate\":0.001,\"beta1\":0.9,\"beta2\":0.95,\"eps\":1e-12,\"w"
       "eight_decay\":0.0,\"grad_clip_norm\":0.0}}"sv},
      {"0.38.0"sv, "save_weights"sv,
       "{\"model_id\":\"session-1:train:0\",\"path\":\"step-1\",\"seq_id\":5,\"overwrite"
       "\":false,\"type\":\"save_weights\"}"sv},
      {"0.38.0"sv, "save_weights_for_sampler"sv,
       "{\"model_id\":\"session-1:train:0\",\"path\":\"snap\",\"kind\":\"snapshot\",\"se"
       "q_id\":6,\"type\":\"save_weights_for_sampler\"}"sv},
      {"0.38.0"sv, "load_weights"sv,
       "{\"model_id\":\"session-1:train:0\",\"seq_id\":7,\"path\":\"tinker://session-1:t"
       "rain:0/weights/step-1\",\"optimizer\":false,\"type\":\"load_weights\"}"sv},
      {"0.38.0"sv, "save_weights_for_sampler"sv,
       "{\"model_id\":\"session-1:train:0\",\"sampling_session_seq_id\":0,\"kind\":\"sna"
       "pshot\",\"seq_id\":8,\"type\":\"save_weights_for_sampler\"}"sv},
      {"0.38.0"sv, "asample"sv,
       "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1,2,3],\"type\":\"encode"
       "d_text\"}]},\"sampling_params\":{\"max_tokens\":4,\"seed\":3,\"stop\":[\"end\"],"
       "\"temperature\":0.5,\"top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"sessio"
       "n-1:sample:0\",\"seq_id\":0,\"prompt_logprobs\":true,\"topk_prompt_logprobs\":0,"
       "\"topk_sample_logprobs\":0,\"prompt_alt_tokens_k\":0,\"record_stability_info\":f"
       "alse,\"type\":\"sample\"}"sv},
      {"0.38.0"sv, "create_sampling_session"sv,
       "{\"session_id\":\"session-1\",\"sampling_session_seq_id\":1,\"base_model\":\"tin"
       "y\",\"type\":\"create_sampling_session\"}"sv},
      {"0.38.0"sv, "asample"sv,
       "{\"num_samples\":1,\"prompt\":{\"chunks\":[{\"tokens\":[1],\"type\":\"encoded_te"
       "xt\"}]},\"sampling_params\":{\"max_tokens\":1,\"stop\":[],\"temperature\":1.0,\""
       "top_k\":-1,\"top_p\":1.0},\"sampling_session_id\":\"session-1:sample:0\",\"seq_i"
       "d\":0,\"prompt_logprobs\":false,\"topk_prompt_logprobs\":0,\"topk_sample_logprob"
       "s\":0,\"prompt_alt_tokens_k\":0,\"record_stability_info\":false,\"type\":\"sampl"
       "e\"}"sv},
  };
  return all;
}

}  // namespace primerl::tinker
