/// Gives the tokens of each group their log-probabilities under a frozen model of the graph
/// (docs/design/teacher.md).
///
///   group      ->  [ teacher ]  -> generate, scored
///   completion ~~~>             ~~~> cancel
///
/// Threads: pooled. State: the groups of one tenant whose log-probabilities are not all there.
/// Order: samples are asked in the order in which their groups came; groups leave as soon as they
/// are complete. At most `groups_max` groups are here: further ones wait on the edge. Every group
/// is sent once. A sample without an answer at the tenant's `teacher.timeout` makes its member one
/// that the trainer refuses. A drain sends all groups as cancelled.
///
/// Groups of a tenant without a teacher, and held-out examples, pass through.
#pragma once

#include <map>
#include <string>

#include "actors/common/engine_asker.h"
#include "actors/messages/rollout.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct TeacherOptions {
  std::string model;          // whose tokenizer it shares; empty = the only model
  int64_t requests_max = 64;  // open at once
  int64_t groups_max = 16;    // here at once
  int64_t attempts_max = 3;   // engine losses or failures that one sample survives
};

inline constexpr std::string_view kTeacherActor = "teacher";

/// Teachers have request numbers of their own, so that a tenant's requests have different numbers.
inline constexpr uint64_t kTeacherRequestsFrom = uint64_t{3} << 46;

class Teacher final : public EngineAsker {
 public:
  using Options = TeacherOptions;
  static Contract contract();
  explicit Teacher(const TeacherOptions& options)
      : EngineAsker(kTeacherRequestsFrom, options.attempts_max), options_(options) {}

  Status start(Resources& resources) override;
  Status drain() override;

 private:
  /// A group that waits for answers.
  struct Asked {
    TrajectoryGroup group;
    uint64_t cause = 0;    // step of this actor group that got it
    InstanceId origin;     // gets its GroupEnded
    int64_t num_open = 0;  // samples without an answer
    template <class F>
    static void fields(F& f) {
      f("group", &Asked::group)("cause", &Asked::cause)("origin", &Asked::origin)("num_open",
                                                                                  &Asked::num_open);
    }
  };
  /// A sample without an answer.
  struct Question {
    uint64_t asked = 0;
    uint32_t member = 0;
    uint32_t sample = 0;
    template <class F>
    static void fields(F& f) {
      f("asked", &Question::asked)("member", &Question::member)("sample", &Question::sample);
    }
  };

  Status on_group(const TrajectoryGroup& group);
  /// Asks for the samples of a member.
  void ask_for(uint64_t asked, uint32_t member);
  Result<GenerateRequest> request_of(uint64_t question) override;
  void on_answer(uint64_t question, const Completion& completion) override;
  void on_fault(uint64_t question, std::string fault) override;
  std::string late_text(uint64_t question) const override;
  size_t requests_max() const override { return static_cast<size_t>(options_.requests_max); }
  /// The question has ended; the last one of a group sends it.
  void end(uint64_t question);
  void send(Asked asked);
  void update_flow();
  const Tenant& tenant() const { return services().tenant(tenant_); }

  const TeacherOptions options_;
  // Touched only by handlers.
  std::map<uint64_t, Asked> asked_;         // by number of arrival
  std::map<uint64_t, Question> questions_;  // by question of EngineAsker
  uint64_t next_asked_ = 0;
  Out<TrajectoryGroup> scored_;
};

/// Writes the log-probabilities of an answer into the sampled positions of a member's sample, and
/// its top_k likeliest tokens there. An error if there are not as many as tokens, if one of a
/// sampled token is out of range, or if the likeliest ones cannot train (top_k.h); then nothing is
/// written. The member's arrays have their whole size.
Status add_reference(Trajectory& member, size_t sample, const Completion& answer, int64_t top_k);

}  // namespace primerl
