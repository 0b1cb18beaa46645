#include "kernels/train/ranks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>
#include <variant>

namespace primerl {
namespace {

constexpr double kTolerance = 1e-6;  // of the lower bound: a better balance is not worth a move
constexpr size_t kMovesPerRank = 16;
constexpr ptrdiff_t kNeighbours = 12;  // documents of about the wanted cost that are tried

/// The free rows of bins, as a tree of maxima: finds the first bin with enough of them.
class FreeRows {
 public:
  explicit FreeRows(size_t bins) : leaves_(std::bit_ceil(std::max<size_t>(bins, 1))) {
    free_.assign(2 * leaves_, std::numeric_limits<int64_t>::min());
  }

  int64_t of(size_t bin) const { return free_[leaves_ + bin]; }
  void set(size_t bin, int64_t rows) {
    size_t node = leaves_ + bin;
    free_[node] = rows;
    while (node /= 2) free_[node] = std::max(free_[2 * node], free_[2 * node + 1]);
  }
  std::optional<size_t> first(int64_t rows) const {
    if (free_[1] < rows) return std::nullopt;
    size_t node = 1;
    while (node < leaves_) node = 2 * node + (free_[2 * node] < rows ? 1 : 0);
    return node - leaves_;
  }

 private:
  size_t leaves_;
  std::vector<int64_t> free_;
};

double cost_of(std::span<const Document> documents, const MicroBatchPlan& bin) {
  double cost = 0;
  for (const size_t i : bin) cost += documents[i].cost;
  return cost;
}

/// The order of falling values, of equal ones by index.
std::vector<size_t> falling(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return values[i]; });
  return order;
}

/// Halves the costliest bins of several documents until there are `wanted`, longest processing time
/// first; then adds empty ones.
void split_bins(std::span<const Document> documents, size_t wanted,
                std::vector<MicroBatchPlan>& bins) {
  using Entry = std::pair<double, ptrdiff_t>;  // cost, and minus the index: ties to the lower one
  std::priority_queue<Entry> splittable;
  const auto add = [&](size_t i) {
    if (bins[i].size() > 1)
      splittable.emplace(cost_of(documents, bins[i]), -static_cast<ptrdiff_t>(i));
  };
  for (size_t i = 0; i < bins.size(); ++i) add(i);
  while (bins.size() < wanted && !splittable.empty()) {
    const auto index = static_cast<size_t>(-splittable.top().second);
    splittable.pop();
    MicroBatchPlan all = std::move(bins[index]), halves[2];
    std::ranges::stable_sort(all, std::greater<>(), [&](size_t i) { return documents[i].cost; });
    double costs[2] = {};
    for (const size_t i : all) {
      const size_t half = costs[1] < costs[0] ? 1 : 0;
      costs[half] += documents[i].cost;
      halves[half].push_back(i);
    }
    // Documents without a cost all went to one half.
    if (halves[1].empty()) {
      halves[1].push_back(halves[0].back());
      halves[0].pop_back();
    }
    bins[index] = std::move(halves[0]);
    bins.push_back(std::move(halves[1]));
    add(index);
    add(bins.size() - 1);
  }
  bins.resize(std::max(bins.size(), wanted));
}

/// Karmarkar-Karp differencing with equally many bins for each rank: `ranks` bins of similar cost
/// form a partial assignment; the two whose costs differ most are added, greatest to least.
std::vector<RankPlan> assign(std::span<const Document> documents, std::vector<MicroBatchPlan> bins,
                             size_t ranks) {
  struct Share {
    double cost = 0;
    std::vector<size_t> bins;
  };
  struct Partial {
    std::vector<Share> shares;  // by falling cost
    double spread() const { return shares.front().cost - shares.back().cost; }
  };
  const auto sort = [](Partial& partial) {
    std::ranges::stable_sort(partial.shares, std::greater<>(), &Share::cost);
  };
  std::vector<double> costs;
  for (const auto& bin : bins) costs.push_back(cost_of(documents, bin));
  std::vector<Partial> partials;
  const auto order = falling(costs);
  for (size_t first = 0; first < order.size(); first += ranks) {
    Partial& partial = partials.emplace_back();
    for (size_t i = first; i < first + ranks; ++i)
      partial.shares.push_back({costs[order[i]], {order[i]}});
  }
  using Entry = std::pair<double, ptrdiff_t>;
  std::priority_queue<Entry> by_spread;
  for (size_t i = 0; i < partials.size(); ++i)
    by_spread.emplace(partials[i].spread(), -static_cast<ptrdiff_t>(i));
  while (by_spread.size() > 1) {
    const auto pop = [&] {
      const auto index = static_cast<size_t>(-by_spread.top().second);
      by_spread.pop();
      return index;
    };
    const size_t to = pop(), from = pop();
    for (size_t i = 0; i < ranks; ++i) {
      Share& share = partials[to].shares[i];
      const Share& other = partials[from].shares[ranks - 1 - i];
      share.cost += other.cost;
      share.bins.insert(share.bins.end(), other.bins.begin(), other.bins.end());
    }
    sort(partials[to]);
    by_spread.emplace(partials[to].spread(), -static_cast<ptrdiff_t>(to));
  }
  std::vector<RankPlan> plans(ranks);
  const auto& shares = partials[static_cast<size_t>(-by_spread.top().second)].shares;
  for (size_t rank = 0; rank < ranks; ++rank)
    for (const size_t bin : shares[rank].bins) plans[rank].push_back(std::move(bins[bin]));
  return plans;
}

/// Moves documents between the costliest rank and others while that makes it cheaper.
class Balancer {
 public:
  Balancer(std::span<const Document> documents, int64_t rows_max, std::vector<RankPlan>& plans)
      : documents_(documents), rows_max_(rows_max), plans_(plans) {
    double total = 0, largest = 0;
    for (const auto& document : documents) {
      total += document.cost;
      largest = std::max(largest, document.cost);
    }
    least_ = std::max(total / static_cast<double>(plans.size()), largest);
    for (const RankPlan& plan : plans) {
      double cost = 0;
      auto& rows = rows_.emplace_back();
      for (const auto& bin : plan) {
        cost += cost_of(documents, bin);
        rows.push_back(0);
        for (const size_t i : bin) rows.back() += documents[i].rows;
      }
      costs_.push_back(cost);
    }
  }

  void run() {
    for (size_t left = kMovesPerRank * plans_.size(); left > 0; --left) {
      const auto high = static_cast<size_t>(std::ranges::max_element(costs_) - costs_.begin());
      if (costs_[high] <= least_ * (1 + kTolerance) || !relieve(high)) return;
    }
  }

 private:
  /// A document in its place.
  struct Place {
    size_t bin = 0, index = 0;
    double cost = 0;
    int64_t rows = 0;
  };
  /// An exchange of documents or whole bins of two ranks.
  struct Move {
    double gain = 0;          // of cost, from the costly rank to the other
    bool is_of_bins = false;  // whole bins change places
    Place from = {};
    std::optional<Place> to = {};  // of bins: only its bin counts; none: nothing comes back
    size_t to_bin = 0;
  };

  std::vector<Place> places_of(size_t rank) const {
    std::vector<Place> places;
    for (size_t b = 0; b < plans_[rank].size(); ++b)
      for (size_t i = 0; i < plans_[rank][b].size(); ++i) {
        const Document& document = documents_[plans_[rank][b][i]];
        places.push_back({b, i, document.cost, document.rows});
      }
    return places;
  }

  /// Tries the cheapest ranks first. False: no exchange makes the costliest rank cheaper.
  bool relieve(size_t high) {
    std::vector<double> cheapness;
    for (const double cost : costs_) cheapness.push_back(-cost);
    const auto places = places_of(high);
    for (const size_t low : falling(cheapness)) {
      const double gap = costs_[high] - costs_[low];
      if (gap <= least_ * kTolerance) return false;
      Move best;
      find_documents(high, low, places, gap, best);
      find_bins(high, low, gap, best);
      if (best.gain <= 0) continue;
      apply(high, low, best);
      return true;
    }
    return false;
  }

  /// Whether `move` leaves the costlier of both ranks cheaper than `best` does.
  static bool is_better(double gain, double gap, const Move& best) {
    if (gain <= gap * kTolerance || gain >= gap * (1 - kTolerance)) return false;
    return best.gain <= 0 || std::abs(gain - gap / 2) < std::abs(best.gain - gap / 2);
  }

  /// Those of `places`, sorted by cost, whose cost is nearest to `cost`.
  static std::span<const Place> nearest(std::span<const Place> places, double cost) {
    const auto found = std::ranges::lower_bound(places, cost, std::less<>(), &Place::cost);
    const ptrdiff_t middle = found - places.begin();
    const ptrdiff_t begin = std::max<ptrdiff_t>(0, middle - kNeighbours);
    const ptrdiff_t end = std::min(std::ssize(places), middle + kNeighbours);
    return places.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  void find_documents(size_t high, size_t low, const std::vector<Place>& places, double gap,
                      Move& best) const {
    auto others = places_of(low);
    std::ranges::stable_sort(others, std::less<>(), &Place::cost);
    const auto emptiest =
        static_cast<size_t>(std::ranges::min_element(rows_[low]) - rows_[low].begin());
    for (const Place& place : places) {
      if (is_better(place.cost, gap, best) && rows_[low][emptiest] + place.rows <= rows_max_)
        best = {.gain = place.cost, .from = place, .to_bin = emptiest};
      for (const Place& other : nearest(others, place.cost - gap / 2)) {
        const int64_t more = place.rows - other.rows;
        if (is_better(place.cost - other.cost, gap, best) &&
            rows_[low][other.bin] + more <= rows_max_ && rows_[high][place.bin] - more <= rows_max_)
          best = {.gain = place.cost - other.cost, .from = place, .to = other, .to_bin = other.bin};
      }
    }
  }

  void find_bins(size_t high, size_t low, double gap, Move& best) const {
    std::vector<Place> others;
    for (size_t b = 0; b < plans_[low].size(); ++b)
      others.push_back({.bin = b, .cost = cost_of(documents_, plans_[low][b])});
    std::ranges::stable_sort(others, std::less<>(), &Place::cost);
    for (size_t b = 0; b < plans_[high].size(); ++b) {
      const double cost = cost_of(documents_, plans_[high][b]);
      for (const Place& other : nearest(others, cost - gap / 2))
        if (is_better(cost - other.cost, gap, best))
          best = {.gain = cost - other.cost,
                  .is_of_bins = true,
                  .from = {.bin = b},
                  .to_bin = other.bin};
    }
  }

  void apply(size_t high, size_t low, const Move& move) {
    MicroBatchPlan& from = plans_[high][move.from.bin];
    MicroBatchPlan& to = plans_[low][move.to_bin];
    int64_t& from_rows = rows_[high][move.from.bin];
    int64_t& to_rows = rows_[low][move.to_bin];
    if (move.is_of_bins) {
      std::swap(from, to);
      std::swap(from_rows, to_rows);
    } else if (move.to) {
      std::swap(from[move.from.index], to[move.to->index]);
      from_rows -= move.from.rows - move.to->rows;
      to_rows += move.from.rows - move.to->rows;
    } else {
      to.push_back(from[move.from.index]);
      from.erase(from.begin() + static_cast<ptrdiff_t>(move.from.index));
      from_rows -= move.from.rows;
      to_rows += move.from.rows;
    }
    costs_[high] -= move.gain;
    costs_[low] += move.gain;
  }

  const std::span<const Document> documents_;
  const int64_t rows_max_;
  std::vector<RankPlan>& plans_;
  double least_ = 0;  // no division has a lower greatest cost
  std::vector<double> costs_;
  std::vector<std::vector<int64_t>> rows_;  // by rank and bin
};

/// The same documents in as many bins of nearly equal cost: the costliest first, each into the
/// cheapest bin with space for it. A document without space: the plan stays as it is.
RankPlan evened_out(std::span<const Document> documents, int64_t rows_max, const RankPlan& plan) {
  std::vector<size_t> all;
  for (const auto& bin : plan) all.insert(all.end(), bin.begin(), bin.end());
  std::ranges::sort(all);
  std::ranges::stable_sort(all, std::greater<>(), [&](size_t i) { return documents[i].cost; });
  RankPlan even(plan.size());
  std::vector<double> costs(plan.size());
  std::vector<int64_t> rows(plan.size());
  for (const size_t i : all) {
    std::optional<size_t> cheapest;
    for (size_t b = 0; b < even.size(); ++b)
      if (rows[b] + documents[i].rows <= rows_max && (!cheapest || costs[b] < costs[*cheapest]))
        cheapest = b;
    if (!cheapest) return plan;
    even[*cheapest].push_back(i);
    costs[*cheapest] += documents[i].cost;
    rows[*cheapest] += documents[i].rows;
  }
  return even;
}

/// Sorts the documents of each bin, and bins by falling cost. Returns the cost of a step whose
/// ranks wait for each other after each micro-batch.
double arrange(std::span<const Document> documents, std::vector<RankPlan>& plans) {
  std::vector<double> greatest(plans.front().size());
  for (RankPlan& plan : plans) {
    for (auto& bin : plan) std::ranges::sort(bin);
    std::ranges::stable_sort(plan, std::greater<>(),
                             [&](const auto& bin) { return cost_of(documents, bin); });
    for (size_t b = 0; b < plan.size(); ++b)
      greatest[b] = std::max(greatest[b], cost_of(documents, plan[b]));
  }
  return std::accumulate(greatest.begin(), greatest.end(), 0.0);
}

}  // namespace

double RowCosts::of(int64_t rows) const {
  const auto n = static_cast<double>(rows);
  return (per_row + per_target) * n + per_pair * n * (n + 1) / 2;
}

RowCosts row_costs(const ModelConfig& config) {
  RowCosts costs;
  const double hidden = config.hidden_size;
  for (const LayerSpec& layer : config.layers)
    for (const StageSpec& stage : layer.stages) {
      if (const auto* attention = std::get_if<AttentionSpec>(&stage)) {
        const double q = double{1} * attention->num_heads * attention->head_dim;
        const double kv = double{1} * attention->num_kv_heads * attention->head_dim;
        costs.per_row += hidden * (q + 2 * kv) + q * hidden;
        costs.per_pair += 2 * q;
      } else if (const auto* mlp = std::get_if<MlpSpec>(&stage)) {
        costs.per_row += 3 * hidden * mlp->width;
      } else {
        const MoeSpec& moe = std::get<MoeSpec>(stage);
        costs.per_row += hidden * moe.num_experts + 3 * hidden * moe.shared_width +
                         3 * hidden * moe.width * moe.experts_per_token;
      }
    }
  costs.per_target = hidden * config.vocab_size;
  return costs;
}

std::vector<std::vector<size_t>> first_fit(std::span<const Document> documents, int64_t rows_max) {
  std::vector<std::vector<size_t>> bins;
  FreeRows space(documents.size());
  for (size_t i = 0; i < documents.size(); ++i) {
    const int64_t rows = documents[i].rows;
    const size_t bin = space.first(std::max<int64_t>(rows, 0)).value_or(bins.size());
    if (bin == bins.size()) {
      bins.emplace_back();
      space.set(bin, rows_max);
    }
    bins[bin].push_back(i);
    space.set(bin, space.of(bin) - rows);
  }
  return bins;
}

std::vector<RankPlan> share_over_ranks(std::span<const Document> documents, int64_t rows_max,
                                       int32_t ranks) {
  auto bins = first_fit(documents, rows_max);
  if (ranks <= 1) return {std::move(bins)};
  const auto count = static_cast<size_t>(ranks);
  if (bins.empty()) return std::vector<RankPlan>(count);
  split_bins(documents, (bins.size() + count - 1) / count * count, bins);
  auto plans = assign(documents, std::move(bins), count);
  Balancer(documents, rows_max, plans).run();
  std::vector<RankPlan> even;
  for (const RankPlan& plan : plans) even.push_back(evened_out(documents, rows_max, plan));
  const double cost = arrange(documents, plans);
  return arrange(documents, even) < cost ? even : plans;
}

}  // namespace primerl
