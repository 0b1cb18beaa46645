/// Checks every row of the data sets of a graph against seq_len: rows of a data set environment and
/// of the file of a data node; and finds their options without effect. Part of check_tasks()
/// (rehearsal_tasks.h). No state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/data/examples.h"
#include "actors/env/environments/dataset.h"
#include "actors/env/row_tasks.h"
#include "graph/plan.h"
#include "kernels/text/chat/format.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// The chat format of a tenant for checks; any day replaces that of the run.
Result<chat::ChatFormat> checked_chat_format(const Tenant& tenant, const Tokenizer& tokenizer);

/// The conversation of a task, as Rollout makes it; empty: a plain prompt.
std::vector<ChatMessage> conversation_of(const Tenant& tenant, const Tokenizer& tokenizer,
                                         const EnvironmentTask& task);

/// Why some rows do not fit: the first one with file, line and number of tokens. A row whose bytes
/// are few enough is not encoded.
std::optional<Error> fault_of_tasks(const RowTasks& rows, const Tenant& tenant,
                                    const Tokenizer& tokenizer);
std::optional<Error> fault_of_examples(const std::string& file,
                                       const std::vector<DataExample>& examples,
                                       const Tenant& tenant, const Tokenizer& tokenizer);

/// An option that is written and changes nothing, for G090.
struct IdleTenantOption {
  std::string key;  // "chat.parser"
  std::string reason;
  std::string help;
};
/// Options of `[tenant.x.chat]` if no task is a conversation.
std::vector<IdleTenantOption> idle_chat_options(const Tenant& tenant);
/// Options of the environment of a data set.
std::vector<IdleTenantOption> idle_dataset_options(const DatasetOptions& options);

}  // namespace primerl
