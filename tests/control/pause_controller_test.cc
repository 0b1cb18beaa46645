#include "runtime/control/pause_controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/catalog.h"
#include "actors/messages/load.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Duration kLease = Duration::seconds(60);

/// Two tenants that share the engine of process 0; the second also has its own engine in process 1.
class DeskStage : public ::testing::Test {
 protected:
  DeskStage() {
    plan_.tenants.resize(2);
    plan_.tenants[0].name = "main";
    plan_.tenants[0].slot = TenantSlot(0);
    plan_.tenants[1].name = "other";
    plan_.tenants[1].slot = TenantSlot(1);
    for (uint32_t i = 0; i < 3; ++i) {
      PlanProcess process;
      process.name = fmt::format("p{}", i);
      process.groups = {GroupId(i)};
      plan_.processes.push_back(process);
      plan_.groups.push_back({process.name, ProcessId(i), {InstanceId(i)}, {}, false});
      PlanInstance instance;
      instance.name = i < 2 ? fmt::format("decode#{}", i) : "router";
      instance.node = NodeId(i);
      instance.group = GroupId(i);
      if (i == 1) instance.tenant = TenantSlot(1);
      plan_.instances.push_back(instance);
      PlanNode node;
      node.contract = i < 2 ? &decode_ : &router_;
      node.instances = {InstanceId(i)};
      plan_.nodes.push_back(node);
    }
  }
  static Contract contract_of(std::string_view name) {
    for (const Contract& contract : actor_catalog())
      if (contract.name == name) return contract;
    return {};
  }

  void ask(const std::string& id, const std::string& owner, Duration lease,
           const std::string& tenant = "", const std::string& why_not = "") {
    Json content = Json::object();
    content.set("owner", owner).set("lease_ns", lease.to_nanoseconds());
    if (!tenant.empty()) content.set("tenant", tenant);
    pauses_.ask(id, content, why_not, now_);
  }
  void answered(uint64_t number, uint32_t instance, const std::string& why = "",
                Code code = Code::kInvalid) {
    pauses_.handle(ProcessId(instance), {number, instance, static_cast<uint8_t>(code), why});
  }
  /// The engine of a process reports the owners of its pauses.
  void heard(uint32_t process, const std::vector<std::string>& owners) {
    EngineUse engine;
    for (const auto& owner : owners) engine.holders.push_back({owner, kLease.to_nanoseconds()});
    pauses_.heard(ProcessId(process), {engine}, now_);
  }
  std::vector<std::string> owners() const {
    std::vector<std::string> owners;
    for (const HoldPicture& hold : pauses_.holds(now_)) owners.push_back(hold.owner);
    return owners;
  }
  /// Messages sent since the last call: "p0: 1 anna 60s".
  std::vector<std::string> sent() { return std::exchange(sent_, {}); }

  const Contract decode_ = contract_of("decode"), router_ = contract_of("router");
  Plan plan_;
  Time now_ = Time::from_nanoseconds(1'000'000'000);
  std::vector<std::string> sent_;
  std::map<std::string, Json> answers_;
  PauseController pauses_{
      plan_,
      [this](ProcessId to, Payload message) {
        const auto& hold = message.as<HoldEngines>();
        sent_.push_back(fmt::format("{}: {} {} {}", plan_.process(to).name, hold.number, hold.owner,
                                    to_string(hold.lease)));
      },
      [this](const std::string& id, const Json& answer) { answers_[id] = answer; }};
};

TEST_F(DeskStage, AsksEveryEngineAndAnswersWhenAllHaveAnswered) {
  ask("q", "anna", kLease);
  EXPECT_THAT(sent(), ElementsAre("p0: 1 anna 1m", "p1: 1 anna 1m"));
  answered(1, 0);
  EXPECT_THAT(answers_, IsEmpty());
  answered(1, 0);
  EXPECT_THAT(answers_, IsEmpty()) << "the same engine twice";
  answered(1, 1);
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_EQ(answers_["q"].dump(),
            R"({"obeyed":["decode#0","decode#1"],"unheld":[],"refused":[],"late":[],)"
            R"("holders":["anna"]})");
  ASSERT_THAT(pauses_.holds(now_), SizeIs(1));
  EXPECT_EQ(pauses_.holds(now_)[0].owner, "anna");
  EXPECT_EQ(pauses_.holds(now_)[0].until, now_ + kLease);
  EXPECT_THAT(pauses_.holds(now_ + kLease), IsEmpty()) << "its lease has ended";
}

TEST_F(DeskStage, TheNewestLeaseOfAnOwnerCountsAndLettingGoEndsIt) {
  ask("first", "anna", kLease);
  ask("second", "anna", kLease * 5);
  ask("bert's", "bert", kLease);
  for (const uint64_t number : {1, 2, 3})
    for (const uint32_t engine : {0U, 1U}) answered(number, engine);
  ASSERT_THAT(pauses_.holds(now_), SizeIs(2));
  EXPECT_EQ(pauses_.holds(now_)[0].until, now_ + kLease * 5);
  ask("go", "anna", Duration());
  ASSERT_THAT(pauses_.holds(now_), SizeIs(1));
  EXPECT_EQ(pauses_.holds(now_)[0].owner, "bert");
}

TEST_F(DeskStage, TellsWhichEnginesRefusedAndWhichHaveNotAnswered) {
  ask("q", "anna", kLease);
  answered(1, 0, "16 owners have paused it already");
  pauses_.tick(now_ + PauseController::kAnswerMax + Duration::nanoseconds(-1));
  EXPECT_THAT(answers_, IsEmpty());
  pauses_.tick(now_ + PauseController::kAnswerMax);
  ASSERT_THAT(answers_, SizeIs(1));
  EXPECT_EQ(answers_["q"].dump(),
            R"({"obeyed":[],"unheld":[],)"
            R"("refused":[{"engine":"decode#0","why":"16 owners have paused it already"}],)"
            R"("late":["decode#1"],"holders":[]})");
  EXPECT_THAT(pauses_.holds(now_), IsEmpty()) << "no engine paused";
  answered(1, 1);
  EXPECT_THAT(answers_, SizeIs(1)) << "too late to be told";
}

TEST_F(DeskStage, TellsWhereWhoLetsGoHeldNothingAndWhoDoes) {
  ask("anna's", "anna", kLease);
  for (const uint32_t engine : {0U, 1U}) answered(1, engine);
  ask("q", "bert", Duration());
  answered(2, 0, "'bert' has paused nothing", Code::kNotFound);
  answered(2, 1, "'bert' has paused nothing", Code::kNotFound);
  EXPECT_EQ(answers_["q"].dump(), R"({"obeyed":[],"unheld":["decode#0","decode#1"],)"
                                  R"("refused":[],"late":[],"holders":["anna"]})");
}

// A resumed run stays paused for owners whose requests an earlier start received.
TEST_F(DeskStage, KnowsTheOwnersThatEnginesTellUntilItIsAskedForThem) {
  heard(0, {"anna", "bert"});
  EXPECT_THAT(owners(), ElementsAre("anna", "bert"));
  EXPECT_EQ(pauses_.holds(now_)[0].until, now_ + kLease);
  EXPECT_THAT(pauses_.holds(now_ + kLease), IsEmpty());
  pauses_.process_back(ProcessId(1), now_);
  EXPECT_THAT(sent(), ElementsAre("p1: 0 anna 1m", "p1: 0 bert 1m"));
  pauses_.heard(ProcessId(0), {}, now_);
  EXPECT_THAT(owners(), ElementsAre("anna", "bert")) << "its engine is not made yet";
  ask("go", "anna", Duration());
  heard(0, {"anna", "bert"});
  EXPECT_THAT(owners(), ElementsAre("bert")) << "the engine had not obeyed yet when it said so";
  heard(0, {});
  EXPECT_THAT(owners(), IsEmpty());
}

TEST_F(DeskStage, RemembersSoManyOwnersThatItWasAskedFor) {
  for (size_t i = 0; i <= PauseController::kOwnersMax; ++i) {
    ask("q", fmt::format("owner{}", i), Duration());
    for (const uint32_t engine : {0U, 1U}) answered(i + 1, engine);
  }
  heard(0, {fmt::format("owner{}", PauseController::kOwnersMax - 1)});
  EXPECT_THAT(owners(), IsEmpty());
  heard(0, {fmt::format("owner{}", PauseController::kOwnersMax)});
  EXPECT_THAT(owners(), SizeIs(1)) << "shown until its engine says otherwise";
}

TEST_F(DeskStage, ATenantsEnginesAreThoseThatNoOtherTenantUses) {
  ask("q", "anna", kLease, "other");
  EXPECT_THAT(sent(), ElementsAre("p1: 1 anna 1m"));
  ask("shared", "anna", kLease, "main");
  EXPECT_THAT(answers_["shared"].dump(),
              HasSubstr("tenant 'main' has no engine of its own: decode#0, decode#1 serve all "
                        "tenants (main, other); without --tenant they stand still for all"));
  EXPECT_NE(answers_["shared"].find("is_bad"), nullptr);
  ask("nobody", "anna", kLease, "third");
  EXPECT_THAT(answers_["nobody"].dump(), HasSubstr("no tenant"));
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(DeskStage, RefusesWhatTheRunCannotDoNowAndWhatIsNoQuestion) {
  ask("early", "anna", kLease, "", "the run is starting");
  EXPECT_THAT(answers_["early"].dump(), HasSubstr("the run is starting"));
  pauses_.ask("odd", Json::object().set("owner", 3), "", now_);
  EXPECT_THAT(answers_["odd"].dump(), HasSubstr("no question"));
  pauses_.ask("list", Json::array(), "", now_);
  EXPECT_THAT(answers_["list"].dump(), HasSubstr("no question"));
  EXPECT_THAT(sent(), IsEmpty());
}

TEST_F(DeskStage, KeepsAsManyQuestionsOpenAsItSays) {
  for (size_t i = 0; i < PauseController::kOpenMax; ++i) ask(fmt::format("q{}", i), "anna", kLease);
  EXPECT_THAT(answers_, IsEmpty());
  ask("more", "anna", kLease);
  EXPECT_THAT(answers_["more"].dump(), HasSubstr("16 questions wait"));
}

TEST_F(DeskStage, NotesAsManyHoldsAsItSays) {
  for (size_t i = 0; i <= PauseController::kHoldsMax; ++i) {
    ask("q", fmt::format("owner{:03}", i), kLease);
    for (const uint32_t engine : {0U, 1U}) answered(i + 1, engine);
  }
  EXPECT_THAT(pauses_.holds(now_), SizeIs(PauseController::kHoldsMax));
}

TEST_F(DeskStage, AProcessThatIsBackIsToldOfTheHoldsThatLast) {
  ask("q", "anna", kLease);
  ask("short", "bert", kLease * 2);
  for (const uint64_t number : {1, 2})
    for (const uint32_t engine : {0U, 1U}) answered(number, engine);
  (void)sent();
  pauses_.process_back(ProcessId(1), now_ + kLease);
  EXPECT_THAT(sent(), ElementsAre("p1: 0 bert 1m")) << "anna's lease has ended";
  pauses_.process_back(ProcessId(2), now_ + kLease);
  EXPECT_THAT(sent(), IsEmpty()) << "it has no engine";
}

TEST_F(DeskStage, TheEndOfTheRunAnswersWhoeverWaits) {
  ask("q", "anna", kLease);
  answered(1, 0);
  pauses_.end("the run ends");
  EXPECT_EQ(answers_["q"].dump(), R"({"error":"the run ends"})");
  EXPECT_THAT(pauses_.holds(now_), IsEmpty());
}

TEST_F(DeskStage, ARunWithoutEnginesHoldsNone) {
  for (PlanNode& node : plan_.nodes) node.contract = &router_;
  ask("q", "anna", kLease);
  EXPECT_THAT(answers_["q"].dump(), HasSubstr("the run has no engine"));
}

}  // namespace
}  // namespace primerl
