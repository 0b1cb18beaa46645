// Samples: requests to engines, and their answers.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "actors/tinker/tinker.h"
#include "graph/base/file_digest.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

// Sessions of clients have the highest bit, trajectories of Rollout do not.
constexpr uint64_t kClientSession = uint64_t{1} << 63;
constexpr float kNoLogprob = -99999.0F;  // of a slot of a table without a token

TopTable table_of(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs,
                  size_t num_rows, int32_t num_columns) {
  TopTable table;
  if (num_columns == 0) return table;
  const size_t num_slots = num_rows * static_cast<size_t>(num_columns);
  table.num_rows = static_cast<uint32_t>(num_rows);
  table.num_columns = static_cast<uint32_t>(num_columns);
  table.ids.assign(num_slots, 0);
  table.logprobs.assign(num_slots, kNoLogprob);
  // Rows of a prompt begin with one that has none: the first token's.
  const size_t shift = num_slots - std::min(num_slots, tokens.size());
  for (size_t i = 0; i < std::min({tokens.size(), logprobs.size(), num_slots}); ++i) {
    if (tokens[i] < 0) continue;
    table.ids[shift + i] = tokens[i];
    table.logprobs[shift + i] = logprobs[i];
  }
  return table;
}

SampledTokens sampled_of(const Completion& completion, int32_t num_top) {
  SampledTokens sampled;
  sampled.ended_by_length = completion.end == FinishReason::kLength;
  sampled.tokens = completion.tokens;
  sampled.logprobs = completion.logprobs;
  sampled.top =
      table_of(completion.top_tokens, completion.top_logprobs, completion.tokens.size(), num_top);
  sampled.spans = completion.spans;
  return sampled;
}

/// Entries before the last `num_last` tokens become ones that were not computed.
void keep_last(int64_t num_last, SampleResult& result) {
  if (num_last == 0) return;
  const size_t num_rows = result.prompt_logprobs.size();
  const size_t num_left_out = num_rows - std::min(num_rows, static_cast<size_t>(num_last));
  for (size_t row = 0; row < num_left_out; ++row) {
    result.prompt_logprobs[row] = std::numeric_limits<float>::quiet_NaN();
    TopTable& top = result.prompt_top;
    for (size_t i = row * top.num_columns; i < (row + 1) * top.num_columns; ++i) {
      top.ids[i] = 0;
      top.logprobs[i] = kNoLogprob;
    }
  }
}

std::string answer_of(const OpenSample& sample) {
  SampleResult result;
  const SamplingParams& sampling = sample.request.sampling;
  for (const Part& part : sample.parts)
    result.sequences.push_back(sampled_of(part.completion, sampling.num_top_logprobs));
  const Completion& first = sample.parts.front().completion;
  result.num_cached = first.num_cached_tokens;
  if (sampling.prompt_logprobs) {
    result.prompt_logprobs = {std::numeric_limits<float>::quiet_NaN()};
    result.prompt_logprobs.insert(result.prompt_logprobs.end(), first.prompt_logprobs.begin(),
                                  first.prompt_logprobs.end());
    result.prompt_top =
        table_of(first.prompt_top_tokens, first.prompt_top_logprobs,
                 sample.request.prompt_tokens.size(), sampling.num_prompt_top_logprobs);
    keep_last(sample.num_prompt_logprobs, result);
    if (!sample.wants_prompt_logprobs) result.prompt_logprobs.clear();
  }
  return sample_answer(result);
}

}  // namespace

Result<OpenSample> Tinker::sample_of(const Sample& wanted, const Tenant& tenant,
                                     uint64_t number) const {
  const auto num_prompt = std::ssize(wanted.prompt);
  if (num_prompt >= tenant.seq_len)
    return error(Code::kInvalid, "the prompt has {} tokens, and a sequence at most {}", num_prompt,
                 tenant.seq_len)
        .note("shorten it, or raise 'seq_len' of the tenant");
  for (const int32_t token : wanted.prompt)
    if (token >= tokenizer_->vocab_size())
      return error(Code::kInvalid, "the prompt has the token {}, ids are below {}", token,
                   tokenizer_->vocab_size());
  OpenSample sample;
  sample.tenant = tenant.slot;
  sample.sampler = wanted.sampler;
  sample.wants_prompt_logprobs = wanted.wants_prompt_logprobs;
  sample.num_prompt_logprobs = wanted.last_prompt_logprobs.value_or(0);
  GenerateRequest& request = sample.request;
  request.session = stable_hash("a request for samples", number) | kClientSession;
  request.prompt_tokens = wanted.prompt;
  request.seed = wanted.seed ? static_cast<uint64_t>(*wanted.seed)
                             : services().random(tenant.slot, "tinker", number).next();
  SamplingParams& sampling = request.sampling;
  sampling.temperature = wanted.temperature;
  sampling.top_k = wanted.top_k;
  sampling.top_p = wanted.top_p;
  const int64_t most = tenant.seq_len - num_prompt;
  sampling.max_tokens =
      static_cast<int32_t>(std::min<int64_t>(wanted.max_tokens.value_or(INT32_MAX), most));
  sampling.ignore_eos = wanted.ignores_eos;
  sampling.stop = wanted.stops;
  sampling.stop_ids = wanted.stop_ids;
  sampling.num_top_logprobs = wanted.num_sample_top;
  sampling.prompt_logprobs = wanted.wants_prompt_logprobs || wanted.num_prompt_top > 0;
  sampling.num_prompt_top_logprobs = wanted.num_prompt_top;
  RETURN_IF_ERROR(validate(sampling));
  sample.parts.resize(static_cast<size_t>(wanted.num_samples));
  sample.num_left = wanted.num_samples;
  return sample;
}

Result<std::string> Tinker::sample(const Client& client) {
  ASSIGN_OR_RETURN(const Sample wanted, read_sample(client.body));
  ASSIGN_OR_RETURN(Sampler* const sampler, find_sampler(wanted.sampler, client));
  RETURN_IF_ERROR(check_futures(sampler->tenant));
  TenantState& state = tenants_[sampler->tenant];
  const Tenant& tenant = services().tenant(sampler->tenant);
  if (std::ssize(state.waiting) + wanted.num_samples > options_.max_waiting)
    return error(Code::kExhausted, "{} sequences of '{}' wait, at most {} may",
                 state.waiting.size(), tenant.name, options_.max_waiting);
  const uint64_t number = next_request_;
  ASSIGN_OR_RETURN(OpenSample made, sample_of(wanted, tenant, number));
  OfferedRequest offered{wanted.sampler,     wanted.seq, text_sha256(client.body),
                         client.body.size(), number,     sampler->tenant};
  offered.may_run_again = true;
  ASSIGN_OR_RETURN(const Admission admission, order_.offer_unordered(offered));
  if (admission.kind == Admission::Kind::kRepeat) {
    if (answers_.find(admission.request, sampler->tenant).ok())
      return sample_future_answer(admission.request, wanted.num_samples);
    // Its answer is gone, perhaps on its way to the client: it is sampled again.
    order_.renew(wanted.sampler, wanted.seq, number);
  }
  ++next_request_;
  answers_.open(number, sampler->tenant);
  made.adapter = sampler->adapter;
  made.request.adapter = sampler->adapter;
  made.request.salt = sampler->salt;
  made.deadline = services().now() + options_.sample_timeout;
  wake_at(made.deadline);
  sampler->used = ++num_used_;
  if (const auto snapshot = state.snapshots.find(sampler->adapter);
      snapshot != state.snapshots.end()) {
    snapshot->second.used = sampler->used;
    made.request.version = snapshot->second.version;
  }
  for (uint32_t i = 0; i < made.parts.size(); ++i) state.waiting.push_back({number, i});
  samples_.emplace(number, std::move(made));
  return sample_future_answer(number, wanted.num_samples);
}

bool Tinker::may_send() const { return !is_draining_ && generate_.room() > 0; }

/// The tenant with the fewest sequences in flight for its share; none if all wait for a completion.
TenantSlot Tinker::next_tenant() const {
  return least_loaded(services(), tenants_, options_.max_inflight,
                      [this](TenantSlot slot, const TenantState& tenant) {
                        return !tenant.waiting.empty() && !paused_.contains(slot) &&
                               budget_wait(slot, tenant) == Duration();
                      });
}

void Tinker::send_waiting() {
  for (int64_t i = 0; i < kSentPerWorkCall && may_send(); ++i) {
    const TenantSlot slot = next_tenant();
    if (slot.is_none()) break;
    TenantState& tenant = tenants_[slot];
    const PartRef part = tenant.waiting.front();
    tenant.waiting.pop_front();
    send_part(part);
  }
  for (const auto& [slot, tenant] : tenants_)
    if (const Duration wait = budget_wait(slot, tenant);
        !tenant.waiting.empty() && wait > Duration())
      wake_at(services().now() + wait);
}

Duration Tinker::budget_wait(TenantSlot slot, const TenantState& tenant) const {
  return tenant.budget.wait(services().tenant(slot).tokens_per_second, services().now());
}

void Tinker::send_part(const PartRef& ref) {
  OpenSample& sample = samples_.at(ref.sample);
  Part& part = sample.parts[ref.index];
  TenantState& tenant = tenants_[sample.tenant];
  GenerateRequest request = sample.request;
  request.request = part.request = next_generate_++;
  request.attempt = part.attempt;
  request.seed += ref.index;
  // One sequence computes the prompt's numbers for all.
  if (ref.index > 0) {
    request.sampling.prompt_logprobs = false;
    request.sampling.num_prompt_top_logprobs = 0;
  }
  if (sample.adapter.is_none()) request.version = tenant.live;
  request.answered = std::exchange(tenant.answered, {});
  request.time_left = std::max(sample.deadline - services().now(), Duration());
  ++tenant.num_inflight;
  requests_[{sample.tenant, request.request}] = ref;
  for (const InstanceId router : generate_.targets(sample.tenant)) routers_.insert(router);
  generate_.send(std::move(request), send_options(sample.tenant));
}

void Tinker::send_cancels() {
  send_cancels_of(tenants_, kCancelsPerWorkCall, [this](TenantSlot slot, Cancel cancel) {
    cancel_.send(std::move(cancel), send_options(slot));
  });
}

Status Tinker::on_completion(const Completion& completion) {
  num_asked_ = 0;
  const TenantSlot slot = services().delivery().tenant;
  TenantState& tenant = tenants_[slot];
  tenant.answered.push_back(completion.request);
  const auto charge = [&](int64_t num_prompt) {
    tenant.budget.charge(num_prompt + std::ssize(completion.tokens),
                         services().tenant(slot).tokens_per_second, services().now());
  };
  if (tenant.end_cancelled(completion.request)) {
    charge(0);  // its prompt is not known any more
    return ok();
  }
  const auto found = requests_.find({slot, completion.request});
  if (found == requests_.end()) {
    services().count("completions_unknown", 1);
    return ok();
  }
  const PartRef part = found->second;
  requests_.erase(found);
  --tenant.num_inflight;
  OpenSample& sample = samples_.at(part.sample);
  sample.parts[part.index].request = 0;
  // Cached tokens of the prompt were not computed.
  const int64_t num_prompt = std::ssize(sample.request.prompt_tokens);
  charge(std::max<int64_t>(num_prompt - completion.num_cached_tokens, 0));
  switch (completion.end) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      part_done(part, completion);
      break;
    case FinishReason::kEngineLost:
    case FinishReason::kFailed:
    case FinishReason::kUnknownSession:
      try_again(part, completion.detail);
      break;
    case FinishReason::kRefused:
      look_for_lost_base(slot, samples_.at(part.sample).adapter, completion.detail);
      fail_sample(part.sample,
                  error(Code::kInvalid, "the engine refused the request: {}", completion.detail));
      break;
    case FinishReason::kCancelled:
      fail_sample(part.sample,
                  error(Code::kUnavailable, "the request was cancelled: {}", completion.detail));
      break;
  }
  return ok();
}

void Tinker::part_done(const PartRef& ref, const Completion& completion) {
  OpenSample& sample = samples_.at(ref.sample);
  Part& part = sample.parts[ref.index];
  part.completion = completion;
  part.completion.kept = {};
  keep_sampled(sample, completion);
  part.is_done = true;
  if (--sample.num_left > 0) return;
  services().count("samples_completed", 1);
  const std::string body = answer_of(sample);
  samples_.erase(ref.sample);
  complete(ref.sample, body, true);
}

void Tinker::keep_sampled(const OpenSample& sample, const Completion& completion) {
  TenantState& tenant = tenants_[sample.tenant];
  int64_t update = 0;
  if (!sample.adapter.is_none()) {
    const auto snapshot = tenant.snapshots.find(sample.adapter);
    if (snapshot == tenant.snapshots.end() || snapshot->second.is_base) return;
    update = snapshot->second.update;
  } else if (!completion.spans.empty()) {
    // Before the first publication the moving key has the weights of version 0.
    const auto later = tenant.published.upper_bound(completion.spans.front().version);
    if (later != tenant.published.begin())
      update = std::prev(later)->second;
    else if (tenant.published.size() == kPublishedMax)
      return;  // it is older than those that are known
  }
  tenant.sampled.add(completion.tokens, update);
}

void Tinker::try_again(const PartRef& ref, const std::string& reason) {
  OpenSample& sample = samples_.at(ref.sample);
  Part& part = sample.parts[ref.index];
  const int64_t num_lost = int64_t{part.attempt} + 1;
  if (num_lost > options_.attempts_max)
    return fail_sample(
        ref.sample,
        error(Code::kInternal, "its engine was lost or failed {} times: {}", num_lost, reason));
  services().count("requests_reissued", 1);
  ++part.attempt;
  tenants_[sample.tenant].waiting.push_front(ref);
}

void Tinker::stop_sample(uint64_t number) {
  const auto stopped = samples_.extract(number);
  const OpenSample& sample = stopped.mapped();
  TenantState& tenant = tenants_[sample.tenant];
  for (const Part& part : sample.parts) {
    if (part.request == 0) continue;
    requests_.erase({sample.tenant, part.request});
    tenant.cancel(part.request);
    services().count("requests_cancelled", 1);
  }
  std::erase_if(tenant.waiting, [number](const PartRef& part) { return part.sample == number; });
}

void Tinker::fail_sample(uint64_t number, const Error& error) {
  stop_sample(number);
  fail(number, error);
}

}  // namespace primerl
