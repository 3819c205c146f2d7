// Texts about the notes and the metrics of a checkpoint.
#pragma once

#include <cairn/checkpoint.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "json_writer.h"
#include "outcome.h"

namespace cairn::cli {

struct ShownNotes {
  std::string json;  // empty: the checkpoint has no notes
  std::vector<std::pair<std::string, double>> metrics;
};

// The notes of the checkpoint. Damaged notes are reported in `outcome`, and not shown.
ShownNotes notes_of(const Checkpoint& checkpoint, Outcome& outcome);

// "loss 0.1, accuracy 0.9", at most four metrics; empty without metrics.
std::string metrics_text(const ShownNotes& notes);

// The lines "metrics" and "notes" of `cairn inspect`; empty without notes. Long notes are cut.
std::string notes_lines(const ShownNotes& notes);

}  // namespace cairn::cli
