#include "actors/common/curriculum.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "graph/base/random.h"
#include "graph/tenancies.h"

namespace primerl {
namespace {

/// The character of each pool in a manifest.
constexpr std::string_view kPoolCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+,-./:;<=>?@[]^_{|}~";
static_assert(kPoolCharacters.size() >= kCurriculumPoolsMax + 4);

/// A walk that passed this many times all rows found none: files with weights repeat some rows
/// before all have come.
constexpr int64_t kPassesMax = 4;

uint8_t easy_pool(const TenantCurriculum& options) {
  return static_cast<uint8_t>(RowPools::kNormal + 1 + options.pools.size());
}

uint8_t pool_for(const TenantCurriculum& options, double reward) {
  if (reward >= options.easy_threshold) return easy_pool(options);
  if (reward <= options.hard_threshold) return RowPools::kHard;
  uint8_t pool = RowPools::kNormal;
  for (size_t i = 0; i < options.pools.size(); ++i)
    if (reward >= options.pools[i].threshold)
      pool = static_cast<uint8_t>(RowPools::kNormal + 1 + i);
  return pool;
}

Json thresholds_of(const TenantCurriculum& options) {
  Json thresholds = Json::array();
  thresholds.push_back(options.hard_threshold);
  for (const DifficultyPool& pool : options.pools) thresholds.push_back(pool.threshold);
  thresholds.push_back(options.easy_threshold);
  return thresholds;
}

double uniform(uint64_t key, uint64_t index) { return RandomStream(mix(key, index)).uniform(); }

}  // namespace

uint64_t return_key(const Tenant& tenant, int64_t num_resumes) {
  return mix(tenancy_key(tenant, stable_hash(tenant.environment_label())),
             static_cast<uint64_t>(num_resumes));
}

std::vector<std::string> pool_names(const TenantCurriculum& options) {
  std::vector<std::string> names = {"unseen", "hard", "normal"};
  for (size_t i = 0; i < options.pools.size(); ++i) names.push_back(fmt::format("pool_{}", i));
  names.emplace_back("easy");
  return names;
}

double weight_of(const TenantCurriculum& options, uint8_t pool) {
  if (pool == RowPools::kHard || pool >= easy_pool(options)) return 0;
  if (pool <= RowPools::kNormal) return options.unseen_weight;
  return options.pools[pool - RowPools::kNormal - 1U].weight;
}

void RowPools::add(const TenantCurriculum& options, uint64_t row, double reward) {
  if (std::cmp_greater_equal(row, options.rows)) return;
  if (row >= pools_.size()) pools_.resize(row + 1, kUnseen);
  pools_[row] = pool_for(options, reward);
}

std::vector<int64_t> RowPools::counts(const TenantCurriculum& options) const {
  // A run that continues with other options may have had more pools, or more rows.
  const uint8_t last = easy_pool(options);
  std::vector<int64_t> counts(last + size_t{1});
  for (const uint8_t pool : pools_) ++counts[std::min(pool, last)];
  counts[kUnseen] += std::max<int64_t>(options.rows - std::ssize(pools_), 0);
  return counts;
}

void RowPools::return_rows(const TenantCurriculum& options, uint64_t key) {
  for (size_t row = 0; row < pools_.size(); ++row) {
    const double share = pools_[row] == kHard                ? options.hard_fraction
                         : pools_[row] == easy_pool(options) ? options.easy_fraction
                                                             : 0;
    if (share > 0 && uniform(key, row) < share) pools_[row] = kUnseen;
  }
}

Json RowPools::to_json(const TenantCurriculum& options) const {
  std::string text;
  for (size_t row = 0; row < pools_.size();) {
    size_t end = row + 1;
    while (end < pools_.size() && pools_[end] == pools_[row]) ++end;
    text += kPoolCharacters[pools_[row]];
    if (end - row > 1) text += std::to_string(end - row);
    row = end;
  }
  return Json::object().set("thresholds", thresholds_of(options)).set("rows", text);
}

Result<RowPools> RowPools::from_json(const TenantCurriculum& options, const Json& json) {
  RowPools pools;
  const Json* thresholds = json.find("thresholds");
  if (thresholds == nullptr) return error(Code::kCorrupt, "the curriculum has no 'thresholds'");
  ASSIGN_OR_RETURN(const std::string text, json.get_string("rows"));
  if (thresholds->dump() != thresholds_of(options).dump()) return pools;
  const auto rows_max = static_cast<uint64_t>(options.rows);
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (at < end) {
    const size_t pool = kPoolCharacters.find(*at++);
    if (pool > easy_pool(options))
      return error(Code::kCorrupt, "the curriculum has a pool '{}' that does not exist", at[-1]);
    uint64_t count = 1;
    if (at < end && *at >= '0' && *at <= '9') {
      const auto read = std::from_chars(at, end, count);
      if (read.ec != std::errc() || count == 0)
        return error(Code::kCorrupt, "the curriculum has an invalid count of rows");
      at = read.ptr;
    }
    // A data set that has become shorter has fewer rows.
    count = std::min(count, rows_max - pools.pools_.size());
    pools.pools_.insert(pools.pools_.end(), count, static_cast<uint8_t>(pool));
  }
  return pools;
}

bool RowWalk::gives(const Rules& rules, uint64_t position, double weight) {
  double largest = rules.options.unseen_weight;
  for (const DifficultyPool& pool : rules.options.pools) largest = std::max(largest, pool.weight);
  if (weight > scale_) scale_ = 0;  // a heavier row is there again
  const double most = scale_ > 0 ? scale_ : largest;
  if (weight >= most || uniform(rules.key, position) * most < weight) {
    num_rejected_ = 0;
    largest_rejected_ = 0;
    return true;
  }
  largest_rejected_ = std::max(largest_rejected_, weight);
  return false;
}

std::optional<RowWalk::Row> RowWalk::next(const Rules& rules, const RowPools& pools) {
  const TenantCurriculum& options = rules.options;
  const int64_t rejected_max = std::max(kWalkStepsMax, kPassesMax * options.rows);
  for (int64_t step = 0; step < kWalkStepsMax; ++step) {
    const uint64_t position = next_++;
    const uint64_t row = rules.row_at(position);
    const bool is_of_stage = row >= rules.stage_of.size() || rules.stage_of[row] <= stage_;
    const double weight = weight_of(options, pools.pool_of(row));
    if (is_of_stage && is_exhausted_) return Row{row, position};
    if (is_of_stage && weight > 0) {
      num_passed_ = 0;
      if (gives(rules, position, weight)) return Row{row, position};
      // All rows have come, and none had a weight near to the largest.
      if (++num_rejected_ >= rejected_max) {
        scale_ = std::exchange(largest_rejected_, 0);
        num_rejected_ = 0;
      }
      continue;
    }
    ++num_rejected_;
    if (++num_passed_ < kPassesMax * options.rows) continue;
    num_passed_ = 0;
    // A stage without rows is over; one whose rows all left gives them again.
    const bool has_rows =
        rules.stage_of.empty() ||
        std::ranges::any_of(rules.stage_of, [this](uint8_t stage) { return stage <= stage_; });
    if (has_rows)
      is_exhausted_ = true;
    else if (stage_ + 1 < options.stages.size())
      ++stage_;
  }
  return std::nullopt;
}

bool RowWalk::add(const TenantCurriculum& options, const RowPools& pools, uint64_t row,
                  double reward) {
  if (weight_of(options, pools.pool_of(row)) > 0) is_exhausted_ = false;
  if (stage_ + 1 >= options.stages.size()) return false;
  const CurriculumStage& stage = options.stages[stage_];
  reward_ += reward;
  if (++num_groups_ < stage.groups) return false;
  const double mean = reward_ / static_cast<double>(num_groups_);
  reward_ = 0;
  num_groups_ = 0;
  if (mean < stage.reward) return false;
  ++stage_;
  is_exhausted_ = false;
  num_passed_ = 0;
  return true;
}

}  // namespace primerl
