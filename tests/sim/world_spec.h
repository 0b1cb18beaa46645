/// WorldSpec: the random properties of a world of state_world.h, drawn from its number, and its
/// graph.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "graph/catalog.h"
#include "graph/plan.h"

namespace primerl::sim {

enum class WorldKind : uint8_t {
  kOneTenant,
  kTwoTenants,
  kRouterDies,
  kEnginesDie,
  kEnvironmentDies,
  kSupervised,
  kResumed,
  kLong,   // many small steps: for rules that measure over a lap of versions
  kCrowd,  // more requests at once than one work call sends
};

/// The faults of a world, besides deaths. Each number is used with the world's random numbers.
struct WorldSpec {
  uint64_t number = 0;
  WorldKind kind = WorldKind::kOneTenant;
  std::string policy;
  std::vector<std::string> sets;
  bool has_faulty_tasks = false, has_faulty_answers = false, has_equal_rewards = false;
  bool has_wrong_policy = false;
  bool loses_file = false;  // rollouts.jsonl cannot be written after some lines
  uint64_t fails_from = 0;  // number of the engine's ended sequence from which sequences fail; 0 =
                            // never
  uint64_t fails_until = 0;
  bool refuses_weights = false;     // one engine cannot apply some versions
  uint64_t late_weights = 0;        // how often a version's bytes have not arrived, or are not
                                    // prepared
  uint64_t device_fault_every = 0;  // in events, for engine and learner alternately; 0 = never
  uint64_t holds_every = 0;         // in events; 0 = the engines are never paused
  uint64_t death_every = 0;         // in events; 0 = no process dies
  uint64_t dead_for = 0;            // in events
  bool is_resumed = false;
  bool never_prepares = false;  // engines report of every version that it is not prepared yet
  Duration environment_takes;   // longest call
  // Only from kOutsideWorlds on.
  bool asks_environment = false;     // the environment is outside of the process
  uint64_t num_outside_rewards = 0;  // of each tenant
  bool has_chat = false;             // tasks are conversations
  uint64_t outside_look_us = 1;      // a look for answers takes less
  uint64_t outside_delay_max = 0;    // in looks for answers
  uint64_t outside_fault_every = 0;  // of calls; 0 = never
  uint64_t outside_lose_every = 0;   // of calls that need their history; 0 = never
  // Only from kClientWorlds on.
  uint64_t num_client_requests = 0;  // 0: no gateway
  uint64_t client_look_us = 1;       // a look for requests takes less
  uint64_t num_judges = 0;           // of each tenant
  bool has_teacher = false;          // only from kTeacherWorlds on
  uint64_t num_tinker_requests = 0;  // only from kTinkerWorlds on; 0: no Tinker client
};

inline constexpr uint64_t kWorldKinds = 9;
/// Worlds from this number to the next take time to write checkpoints, some too much.
inline constexpr uint64_t kSavingWorlds = 50'000;
/// Worlds from this number on ask their environment, their rewards or both outside (outside.h).
inline constexpr uint64_t kOutsideWorlds = 100'000;
/// Worlds from this number on measure their policy, and some have a last task. Every second one
/// asks outside too.
inline constexpr uint64_t kEvaluationWorlds = 200'000;
/// Worlds from this number on have a gateway with clients, judges or both. Every second one asks
/// outside too.
inline constexpr uint64_t kClientWorlds = 300'000;
/// Worlds from this number on have a teacher, or held-out examples if they are supervised. They ask
/// nothing outside.
inline constexpr uint64_t kTeacherWorlds = 400'000;
/// Worlds from this number to the next have tenants with two environments, one with a curriculum.
/// Every second one measures its policy too.
inline constexpr uint64_t kMixWorlds = 500'000;
/// Worlds from this number on have a tenant that a client of Tinker's SDK trains, alone or beside
/// one of a loop. A person ends them.
inline constexpr uint64_t kTinkerWorlds = 600'000;

/// A plan has pointers into its catalog.
struct World {
  WorldSpec spec;
  Catalog catalog;
  std::string fault;
  std::shared_ptr<const Plan> plan;
};

/// Each world is made once per number and stays valid as long as the program runs.
const World& world_of(uint64_t number);
WorldSpec spec_of(uint64_t number);

/// While this file exists, the scripted device "engine" or "learner" fails.
std::filesystem::path fault_file(const std::string& of);
/// The checkpoint of a learner, for worlds that resume.
std::filesystem::path resume_folder();

}  // namespace primerl::sim
