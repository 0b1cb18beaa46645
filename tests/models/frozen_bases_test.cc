// Shared frozen weights: loaded once, kept while they are used.
#include "kernels/models/frozen_bases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <latch>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

struct Numbers final : FrozenBase {
  explicit Numbers(int value) : first(value) {}
  int first;
};
using Held = Result<std::shared_ptr<const Numbers>>;

const FrozenBases::Key kKey{"/models/a", "cpu", "float32"};

Held numbers(int value) { return std::shared_ptr<const Numbers>(std::make_shared<Numbers>(value)); }
Held broken() { return error(Code::kCorrupt, "no such tensor"); }

TEST(FrozenBases, AFailedLoadLeavesNothingAndTheNextLoadsItself) {
  FrozenBases bases;
  EXPECT_EQ(bases.find_or_load<Numbers>(kKey, broken).error().code(), Code::kCorrupt);
  EXPECT_THROW((void)bases.find_or_load<Numbers>(kKey, []() -> Held { throw std::bad_alloc(); }),
               std::bad_alloc);
  EXPECT_EQ(bases.size(), 0U);
  const auto held = bases.find_or_load<Numbers>(kKey, [] { return numbers(3); });
  EXPECT_EQ((*held)->first, 3);
  EXPECT_EQ(bases.size(), 1U);
}

TEST(FrozenBases, WhoHoldsOneKeepsItWhoeverElseIsGone) {
  FrozenBases bases;
  auto engine = bases.find_or_load<Numbers>(kKey, [] { return numbers(1); }).value();
  auto learner = bases.find_or_load<Numbers>(kKey, broken).value();
  EXPECT_EQ(engine, learner);
  engine.reset();
  EXPECT_EQ(bases.size(), 1U);
  engine = bases.find_or_load<Numbers>(kKey, broken).value();
  EXPECT_EQ(engine, learner) << "requested again: the copy that the other kept";
  engine.reset();
  learner.reset();
  EXPECT_EQ(bases.size(), 0U);
  EXPECT_EQ(bases.find_or_load<Numbers>(kKey, [] { return numbers(2); }).value()->first, 2);
}

TEST(FrozenBases, AreTheSameUnderEverySpellingOfTheFolderAlone) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() / "model";
  std::filesystem::create_directory(folder);
  std::filesystem::create_directory_symlink(folder, scratch.path() / "link");
  FrozenBases bases;
  const auto first =
      bases.find_or_load<Numbers>({folder, "cpu", "float32"}, [] { return numbers(1); }).value();
  for (const auto& spelling : {scratch.path() / "link", scratch.path() / "x" / ".." / "model"})
    EXPECT_EQ(bases.find_or_load<Numbers>({spelling, "cpu", "float32"}, broken).value(), first);
  for (const FrozenBases::Key& other :
       {FrozenBases::Key{scratch.path(), "cpu", "float32"},
        FrozenBases::Key{folder, "cuda:0", "float32"}, FrozenBases::Key{folder, "cpu", "bfloat16"}})
    EXPECT_NE(bases.find_or_load<Numbers>(other, [] { return numbers(2); }).value(), first);
}

TEST(FrozenBases, AreLoadedByOneWhileTheOthersWait) {
  FrozenBases bases;
  constexpr int kThreads = 8;
  std::latch all_here(kThreads);
  std::atomic<int> num_loads = 0;
  std::vector<std::shared_ptr<const Numbers>> held(kThreads);
  {
    std::vector<std::jthread> threads;
    for (auto& mine : held)
      threads.emplace_back([&] {
        all_here.arrive_and_wait();
        // The first load fails: one of the waiting threads loads instead.
        const auto load = [&] { return num_loads++ == 0 ? broken() : numbers(5); };
        auto found = bases.find_or_load<Numbers>(kKey, load);
        if (found.ok()) mine = *found;
      });
  }
  EXPECT_EQ(num_loads, 2);
  EXPECT_EQ(std::ranges::count(held, nullptr), 1);
  for (const auto& mine : held) EXPECT_EQ(mine.use_count(), mine == nullptr ? 0 : kThreads - 1);
}

TEST(FrozenBases, OneIsLoadedWhileAnotherIs) {
  FrozenBases bases;
  const FrozenBases::Key other{"/models/b", "cpu", "float32"};
  std::shared_ptr<const Numbers> inner;
  const auto outer = bases.find_or_load<Numbers>(kKey, [&] {
    std::jthread([&] {
      inner = bases.find_or_load<Numbers>(other, [] { return numbers(2); }).value();
    }).join();
    return numbers(1);
  });
  EXPECT_EQ((*outer)->first + inner->first, 3);
  EXPECT_EQ(bases.size(), 2U);
}

}  // namespace
}  // namespace primerl
