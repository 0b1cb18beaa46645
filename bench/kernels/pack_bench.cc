// Shares documents over the ranks of a learner (kernels/train/ranks.h), for
// bench/peers/prime_rl_packing.py, which makes the lengths and checks the result.
//
//   pack_bench < LINE        LINE: a b rows_max ranks length...
//
// A document of n rows costs a n + b n^2. Prints one JSON object: "ms", the milliseconds of CPU
// time of each of five runs, with the sorting by length; and "ranks", the indices of the documents
// of each micro-batch of each rank, in the order of LINE.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <iostream>
#include <numeric>
#include <vector>

#include "kernels/train/ranks.h"

int main() {
  using primerl::Document;
  double a = 0, b = 0;
  int64_t rows_max = 0, length = 0;
  int32_t ranks = 0;
  if (!(std::cin >> a >> b >> rows_max >> ranks) || rows_max < 1 || ranks < 1) {
    fmt::print(stderr, "usage: pack_bench < LINE; LINE: a b rows_max ranks length...\n");
    return 2;
  }
  std::vector<int64_t> lengths;
  while (std::cin >> length) lengths.push_back(length);
  std::vector<double> ms;
  std::vector<size_t> order(lengths.size());
  std::vector<primerl::RankPlan> plans;
  for (int run = 0; run < 5; ++run) {
    const std::clock_t start = std::clock();
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return lengths[i]; });
    std::vector<Document> documents;
    for (const size_t i : order) {
      const auto n = static_cast<double>(lengths[i]);
      documents.push_back({lengths[i], a * n + b * n * n});
    }
    plans = primerl::share_over_ranks(documents, rows_max, ranks);
    ms.push_back(1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  std::vector<std::string> texts;
  for (const auto& plan : plans) {
    std::vector<std::string> bins;
    for (const auto& bin : plan) {
      std::vector<size_t> indices;
      for (const size_t i : bin) indices.push_back(order[i]);
      bins.push_back(fmt::format("[{}]", fmt::join(indices, ",")));
    }
    texts.push_back(fmt::format("[{}]", fmt::join(bins, ",")));
  }
  fmt::print("{{\"ms\": [{:.4f}], \"ranks\": [{}]}}\n", fmt::join(ms, ", "), fmt::join(texts, ","));
  return 0;
}
