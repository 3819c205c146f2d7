// The steps of a save, for storage plug-ins of torch: claim, write a share, commit.
#include <cairn/save_steps.h>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bound.h"
#include "call_options.h"
#include "errors.h"
#include "interrupt.h"
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

nb::list commit(Claim& claim, const nb::bytes& metadata, const nb::list& files) {
  std::vector<PublishedFile> published;
  for (const nb::handle file : files) {
    published.push_back({to_utf8(file[0]), nb::cast<std::uint64_t>(file[1]), nb::cast<std::uint32_t>(file[2])});
  }
  const std::string pickle = bytes_of(metadata);
  SaveClaim& held = claimed(claim);
  Interrupt interrupt;
  Result<SaveReport> outcome = [&] {
    const nb::gil_scoped_release released;
    return held.commit(pickle, published, interrupt.poll_again());
  }();
  interrupt.rethrow(outcome);
  const SaveReport report = unwrap(std::move(outcome));
  nb::list warnings;
  for (const std::string& warning : report.warnings) warnings.append(to_str(warning));
  return warnings;
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
      .def("commit", &commit)
      .def("withdraw", &withdraw);
  nb::class_<Share>(module, "RankShare")
      .def_prop_ro("files", &files_of)
      .def_prop_ro("places", &places_of)
      .def("hand_over", [](Share& self) { self.held->hand_over(); });
  module.def("write_share", &write_share);
}

}  // namespace cairn::python
