// The environments of a tenant: their rewards, which of them gives a task, and which row.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/data/examples.h"
#include "actors/env/env.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/env/rewards/judge.h"
#include "actors/env/scripted_environment.h"

namespace primerl {

Status Env::make_sources() {
  const Tenant& tenant = services().tenant(tenant_);
  const bool is_rehearsal = !given_.empty();
  uint32_t num_rewards = 0;
  for (size_t i = 0; i < tenant.num_environments(); ++i) {
    Source& source = sources_.emplace_back();
    source.tenant = &tenant.in_environment(i);
    source.use = pools_.environments[i];
    source.first_reward = std::exchange(
        num_rewards, num_rewards + static_cast<uint32_t>(source.tenant->rewards.size()));
    if (i < given_.size()) {
      source.environment = std::move(given_[i]);
    } else if (is_rehearsal) {
      source.environment = make_scripted_environment();
    } else if (!source.is_outside()) {
      ASSIGN_OR_RETURN(source.environment, make_environment(source.tenant->environment));
    }
    RETURN_IF_ERROR(make_scorers(source, is_rehearsal));
    if (!source.has_curriculum()) continue;
    if (!is_rehearsal || source.tenant->curriculum.field.empty())
      RETURN_IF_ERROR(make_stages(source));
    rows_[static_cast<uint32_t>(i)];
  }
  if (sources_.size() > 1)
    mix_ = TaskMix(weights_of(tenant), services().random(tenant_, kTaskMixSeed, 0).next());
  return ok();
}

/// In a rehearsal the environment exists already. Rewards of this process read a real answer, so
/// the environment's own reward is used instead of them.
Status Env::make_scorers(Source& source, bool is_rehearsal) {
  using Kind = Scorer::Kind;
  for (size_t i = 0; i < source.tenant->rewards.size(); ++i) {
    const TenantReward& reward = source.tenant->rewards[i];
    Scorer& scorer = source.scorers.emplace_back();
    scorer.weight = reward.weight;
    if (is_judge(reward) && question_.targets(tenant_).empty())
      return error(Code::kInvalid, "reward '{}' asks a judge, but 'question' is not connected",
                   reward.label)
          .note(
              "add the nodes judge, judge_router, judge_prefill and judge_decode with their edges, "
              "or remove [edges]: then they are implied");
    scorer.kind = is_judge(reward)             ? Kind::kModel
                  : source.use.rewards[i] >= 0 ? Kind::kOutside
                  : is_rehearsal               ? Kind::kRehearsed
                                               : Kind::kHere;
    if (scorer.kind != Kind::kHere) continue;
    ASSIGN_OR_RETURN(scorer.reward, make_reward(reward));
  }
  return ok();
}

/// The stage that first has each row; a row that none has comes after all.
Status Env::make_stages(Source& source) const {
  const TenantCurriculum& own = source.tenant->curriculum;
  if (own.stages.empty()) return ok();
  source.stage_of.resize(static_cast<size_t>(own.rows));
  for (size_t row = 0; row < source.stage_of.size(); ++row) {
    auto number = static_cast<double>(row);
    if (!own.field.empty()) {
      ASSIGN_OR_RETURN(number, source.environment->number_of_row(row, own.field));
    }
    const auto first = std::ranges::find_if(
        own.stages, [&](const CurriculumStage& stage) { return number <= stage.most; });
    source.stage_of[row] = static_cast<uint8_t>(first - own.stages.begin());
  }
  const bool has_rows = std::ranges::any_of(
      source.stage_of, [&](uint8_t stage) { return std::cmp_less(stage, own.stages.size()); });
  if (!has_rows)
    return error(Code::kInvalid,
                 "no stage of the curriculum of '{}' has a row: each of the {} has more than {}",
                 source.tenant->environment_label(), own.rows, own.stages.back().most)
        .note("without 'most', the last stage has all rows");
  return ok();
}

Status Env::resume_rows(const Json& manifest) {
  const Json* all = manifest.find(kCurricula);
  if (all == nullptr) return ok();
  ASSIGN_OR_RETURN(const int64_t resumes, manifest.get_int("resumes"));
  for (auto& [index, rows] : rows_) {
    const Tenant& tenant = *sources_[index].tenant;
    const Json* saved = all->find(tenant.environment_label());
    if (saved == nullptr) continue;
    ASSIGN_OR_RETURN(rows.pools, RowPools::from_json(tenant.curriculum, *saved));
    rows.pools.return_rows(tenant.curriculum, return_key(tenant, resumes));
    ASSIGN_OR_RETURN(const int64_t position, saved->get_int("next"));
    ASSIGN_OR_RETURN(const int64_t stage, saved->get_int("stage"));
    const auto last = std::max<int64_t>(std::ssize(tenant.curriculum.stages) - 1, 0);
    rows.walk.begin_at(static_cast<uint64_t>(std::max<int64_t>(position, 0)),
                       static_cast<uint32_t>(std::clamp<int64_t>(stage, 0, last)));
  }
  return ok();
}

Result<const Env::Source*> Env::source_of(const TaskSource& source) const {
  if (source.environment < sources_.size()) return &sources_[source.environment];
  return error(Code::kInvalid, "environment {} of tenant '{}', which has {}", source.environment,
               services().tenant(tenant_).name, sources_.size());
}

RandomStream Env::random_of(const TaskSource& source) const {
  // The first environment has the tasks that it would have alone.
  const uint64_t index =
      source.environment == 0 ? source.number : mix(source.number, source.environment);
  return services().random(tenant_, "task", index);
}

std::optional<TaskSource> Env::draw(uint64_t ordinal) {
  const TaskMix::Drawn drawn = mix_.at(ordinal);
  TaskSource source{.environment = drawn.environment, .number = drawn.number};
  const Source& of = sources_[drawn.environment];
  if (!of.has_curriculum()) return source;
  Rows& rows = rows_[drawn.environment];
  const TenantCurriculum& own = of.tenant->curriculum;
  const auto count = static_cast<uint64_t>(std::max<int64_t>(own.rows, 1));
  const uint64_t key = mix(stable_hash(of.tenant->environment_label()),
                           services().random(tenant_, "curriculum", 0).next());
  const EnvironmentContract* const contract = of.tenant->environment.contract;
  // Without rows of its own, the number of a task is its row.
  const bool has_rows = contract != nullptr && contract->rows && of.environment != nullptr;
  const auto row_at = [&](uint64_t position) {
    return has_rows ? of.environment->row_of(position) : shuffled_index(position, count, key);
  };
  const bool was_exhausted = rows.walk.is_exhausted();
  const auto found = rows.walk.next({own, row_at, of.stage_of, key}, rows.pools);
  if (!was_exhausted && rows.walk.is_exhausted()) {
    services().count("curriculum_exhausted", 1);
    services().log(LogLevel::kWarning,
                   fmt::format("environment '{}': all rows of the curriculum have left, so they "
                               "are given again until one has a weight",
                               of.tenant->environment_label()));
  }
  if (!found) return std::nullopt;
  source.row = found->row;
  source.position = found->position;
  source.number = has_rows ? found->position : found->row;
  source.stage = rows.walk.stage();
  return source;
}

bool Env::may_send_task() {
  if (is_paused_) return false;
  const int64_t space = task_.room();
  if (rows_.empty()) return space > 0;
  most_room_ = std::max(most_room_, space);
  return space > 0 && most_room_ - space < kTasksAheadOfCurriculum;
}

Status Env::on_scores(const Action& action) {
  for (const GroupScored& scored : action.scored) RETURN_IF_ERROR(add_score(scored));
  Observation seen;
  seen.trajectory = action.trajectory;
  seen.attempt = action.attempt;
  seen.turn = action.turn;
  observation_.send(std::move(seen), for_tenant(tenant_));
  return ok();
}

Status Env::add_score(const GroupScored& scored) {
  if (std::isnan(scored.reward)) return ok();
  ASSIGN_OR_RETURN(const Source* const source, source_of(scored.source));
  const auto rows = rows_.find(scored.source.environment);
  if (rows == rows_.end())
    return error(Code::kInvalid, "a group of environment '{}' was scored, which has no curriculum",
                 source->tenant->environment_label());
  const TenantCurriculum& own = source->tenant->curriculum;
  rows->second.pools.add(own, scored.source.row, scored.reward);
  if (rows->second.walk.add(own, rows->second.pools, scored.source.row, scored.reward))
    services().log(LogLevel::kInfo, fmt::format("environment '{}': stage {} of {} begins",
                                                source->tenant->environment_label(),
                                                rows->second.walk.stage(), own.stages.size()));
  return ok();
}

}  // namespace primerl
