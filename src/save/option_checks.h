// Checks of SaveOptions before a save begins.
#pragma once

#include <cairn/result.h>
#include <cairn/save.h>

#include "format/manifest/notes.h"

namespace cairn::checkpointer {

inline Result<void> check_notes_of(const SaveOptions& options) {
  if (options.notes.empty()) return {};
  if (options.safetensors) {
    return Error(ErrorCode::kUnsupported,
                 "a safetensors model has no place for notes; save a DCP checkpoint with them");
  }
  return manifest::check_notes(options.notes);
}

// Refuses the options that an asynchronous save would not obey.
inline Result<void> check_asynchronous(const SaveOptions& options) {
  if (options.safetensors) {
    return Error(ErrorCode::kUnsupported, "an asynchronous save writes no safetensors model; use save()");
  }
  if (options.before_commit) {
    return Error(ErrorCode::kUnsupported,
                 "before_commit is called by save() only: the writer of an asynchronous save commits while the caller "
                 "goes on");
  }
  return check_notes_of(options);
}

}  // namespace cairn::checkpointer
