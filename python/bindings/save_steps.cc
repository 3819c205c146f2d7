// The steps of a save, for storage plug-ins of torch: claim, write a share, commit.
#include <cairn/save.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "interrupt.h"
#include "state_dict.h"
#include "text.h"

namespace cairn::python {
namespace {

std::string bytes_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// Python's holder of a claim or a share; empty after a withdrawal. Destroyed with Python's lock held. The destructor
// releases the lock meanwhile, since the step's destructor may wait for the storage.
template <typename Step>
struct Held {
  explicit Held(Step step) : held(std::move(step)) {}
  Held(Held&& other) noexcept : held(std::exchange(other.held, std::nullopt)) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (!held) return;
    const nb::gil_scoped_release released;
    held.reset();
  }

  std::optional<Step> held;
};

using Claim = Held<SaveClaim>;
using Share = Held<RankShare>;

// [(fqn, dtype code, shape, offsets, sizes)]
std::vector<HeldBox> held_boxes(nb::handle boxes) {
  std::vector<HeldBox> held;
  for (const nb::handle box : boxes) {
    Box place = unwrap(Box::make(to_extents(box[3]), to_extents(box[4])));
    held.push_back({to_utf8(box[0]), dtype_of(nb::cast<int>(box[1])), to_extents(box[2]), std::move(place)});
  }
  return held;
}

// `held`: the boxes of each rank. `keywords`: safetensors, durable, overwrite, deadlines.
Claim claim_model(const nb::bytes& directory, const nb::list& held, const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  std::vector<std::vector<HeldBox>> boxes;
  for (const nb::handle rank : held) boxes.push_back(held_boxes(rank));
  return Claim(without_lock(options, keywords, [&] { return SaveClaim::make_model(path, boxes, options); }));
}

// `keywords`: durable, overwrite, alone_as_rank, deadlines.
void make_claim(Claim* place, const nb::bytes& directory, const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  new (place) Claim(without_lock(options, keywords, [&] { return SaveClaim::make(path, options); }));
}

SaveClaim& claimed(Claim& claim) {
  if (!claim.held) throw Error(ErrorCode::kInvalidArgument, "this save has been given up");
  return *claim.held;
}

// Calls `commit(claim, interrupted)` without Python's lock. Returns the warnings.
template <typename Commit>
nb::list commit_by(Claim& claim, const Commit& commit) {
  SaveClaim& held = claimed(claim);
  Interrupt interrupt;
  Result<SaveReport> outcome = [&] {
    const nb::gil_scoped_release released;
    return commit(held, interrupt.poll_again());
  }();
  interrupt.rethrow(outcome);
  const SaveReport report = unwrap(std::move(outcome));
  nb::list warnings;
  for (const std::string& warning : report.warnings) warnings.append(to_str(warning));
  return warnings;
}

nb::list commit(Claim& claim, const nb::bytes& metadata, const nb::list& files) {
  std::vector<PublishedFile> published;
  for (const nb::handle file : files) {
    published.push_back({to_utf8(file[0]), nb::cast<std::uint64_t>(file[1]), nb::cast<std::uint32_t>(file[2])});
  }
  const std::string pickle = bytes_of(metadata);
  return commit_by(claim, [&](SaveClaim& held, const std::function<bool()>& interrupted) {
    return held.commit(pickle, published, interrupted);
  });
}

// `boxes`: [(fqn, file, bytes)]
nb::list commit_model(Claim& claim, const nb::list& boxes) {
  std::vector<PublishedBox> published;
  for (const nb::handle box : boxes) {
    published.push_back({to_utf8(box[0]), to_utf8(box[1]), nb::cast<std::uint64_t>(box[2])});
  }
  return commit_by(claim, [&](SaveClaim& held, const std::function<bool()>& interrupted) {
    return held.commit_model(published, interrupted);
  });
}

// [(ticket, indices of boxes)], by rank
nb::list model_shares(Claim& claim) {
  nb::list shares;
  for (const ModelShare& share : claimed(claim).model_shares()) {
    nb::list boxes;
    for (const std::uint32_t box : share.boxes) boxes.append(box);
    shares.append(nb::make_tuple(nb::bytes(share.ticket.data(), share.ticket.size()), boxes));
  }
  return shares;
}

void withdraw(Claim& claim) {
  std::optional<SaveClaim> taken = std::exchange(claim.held, std::nullopt);
  if (!taken) return;
  Interrupt interrupt;
  {
    const nb::gil_scoped_release released;
    taken->withdraw(interrupt.poll_again());
    taken.reset();
  }
  interrupt.rethrow();
}

// `keywords`: durable, file_per_item, thread_count, deadlines.
Share write_share(const nb::bytes& directory, const nb::bytes& ticket, std::uint32_t rank, const StateDict& state,
                  const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  const std::string bytes = bytes_of(ticket);
  return Share(without_lock(options, keywords, [&] { return RankShare::write(path, bytes, rank, state, options); }));
}

// `keywords`: safetensors, durable, thread_count, deadlines.
Share write_model_share(const nb::bytes& directory, const nb::bytes& ticket, std::uint32_t rank, const StateDict& state,
                        const nb::kwargs& keywords) {
  SaveOptions options = save_options_of(keywords);
  const std::filesystem::path path = to_filesystem_path(directory);
  const std::string bytes = bytes_of(ticket);
  return Share(
      without_lock(options, keywords, [&] { return RankShare::write_model(path, bytes, rank, state, options); }));
}

// [(name, size, trailer checksum)]
nb::list files_of(const Share& share) {
  nb::list files;
  for (const PublishedFile& file : share.held->files()) {
    files.append(nb::make_tuple(to_str(file.name), file.bytes, file.trailer_checksum));
  }
  return files;
}

// [(index into the files, offset, length)], by entry of the state
nb::list places_of(const Share& share) {
  nb::list places;
  for (const ItemLocation& place : share.held->places()) {
    places.append(nb::make_tuple(place.file, place.offset, place.length));
  }
  return places;
}

}  // namespace

void bind_save_steps(nb::module_& module) {
  nb::class_<Claim>(module, "SaveClaim")
      .def("__init__", &make_claim)
      .def_prop_ro("save_id", [](Claim& self) { return to_str(to_hex(claimed(self).save_id())); })
      .def_prop_ro("ticket",
                   [](Claim& self) {
                     const std::string ticket = claimed(self).ticket();
                     return nb::bytes(ticket.data(), ticket.size());
                   })
      .def_prop_ro("model_shares", &model_shares)
      .def("commit", &commit)
      .def("commit_model", &commit_model)
      .def("withdraw", &withdraw);
  nb::class_<Share>(module, "RankShare")
      .def_prop_ro("files", &files_of)
      .def_prop_ro("places", &places_of)
      .def("hand_over", [](Share& self) { self.held->hand_over(); });
  module.def("write_share", &write_share);
  module.def("claim_model", &claim_model);
  module.def("write_model_share", &write_model_share);
}

}  // namespace cairn::python
