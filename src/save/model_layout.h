// Model layout: the coordinator's decisions in a save as a safetensors model: the rank, the file and the place of each
// tensor.
//
// Pure functions.
#pragma once

#include <cairn/result.h>
#include <cairn/save.h>
#include <cairn/state_dict.h>

#include <span>

#include "commit/commit_content.h"
#include "save/save_layout.h"

namespace cairn::checkpointer {

// Fails, with the key, for an entry that a model can't hold: kInvalidArgument for a value and for a key without a file
// number, kUnsupported for a tensor of a type that safetensors lacks.
Result<void> check_model_state(std::span<const Entry> entries, const SafetensorsForm& form);

// Replaces the assignment of items to ranks for a model whose files are each written by one rank. kInvalidArgument if
// no rank holds all tensors of a file whole.
Result<void> assign_whole_files(save_plan::PlannedSave& planned, const SafetensorsForm& form);

// The layout of the save of `ticket`. A rank that writes several chunks of a tensor has a file for each of them,
// because a safetensors file has one tensor of a name: the numbers of these files' shards follow the numbers of the
// ranks. kUnsupported if a header is above the limit of safetensors.
Result<SaveLayout> lay_out_model(const save_plan::PlannedSave& planned, const SafetensorsForm& form,
                                 const commit::SaveTicket& ticket);

// The files of the layout, and the index if the model has one.
commit::ModelContent content_of(const Catalog& catalog);

}  // namespace cairn::checkpointer
