#include <cairn/save_steps.h>

#include <unordered_set>
#include <utility>

#include "checkpointer/directory_calls.h"
#include "checkpointer/job_identity.h"
#include "checkpointer/rank_writer.h"
#include "checkpointer/save_items.h"
#include "checkpointer/save_messages.h"
#include "format/dcp/metadata_decoder.h"
#include "storage/posix/posix_storage.h"
#include "transfer/commit.h"

namespace cairn {

struct SaveClaim::Impl {
  std::unique_ptr<storage::Storage> storage;  // outlives the transaction: declared before it
  std::unique_ptr<transfer::SaveTransaction> transaction;
  transfer::SaveTicket ticket;
  Durability durability = Durability::kDurable;
  bool may_have_committed = false;
};

struct RankShare::Impl {
  std::unique_ptr<storage::Storage> storage;  // outlives the writer: declared before it
  std::unique_ptr<checkpointer::RankWriter> writer;
  std::vector<PublishedFile> files;
};

namespace {

std::string saving_to(const std::filesystem::path& directory) { return "saving to '" + directory.string() + "'"; }

// What is committed must be readable: the metadata comes from elsewhere.
Result<Catalog> read_back(std::string_view metadata, const std::vector<PublishedFile>& files) {
  CAIRN_TRY_ASSIGN(dcp::DecodedMetadata decoded, dcp::decode_metadata(std::as_bytes(std::span(metadata))));
  std::unordered_set<std::string_view> names;
  for (const PublishedFile& file : files) {
    CAIRN_TRY(storage::check_name(file.name));
    if (!names.insert(file.name).second) {
      return Error(ErrorCode::kInvalidArgument, "two data files of one name").file(file.name);
    }
  }
  for (const std::string& name : decoded.catalog.files) {
    if (!names.contains(name)) {
      return Error(ErrorCode::kInvalidArgument, "the metadata names a data file that no rank of this save has written")
          .file(name);
    }
  }
  CAIRN_TRY(decoded.catalog.index());
  return std::move(decoded.catalog);
}

}  // namespace

SaveClaim::SaveClaim(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SaveClaim::SaveClaim(SaveClaim&&) noexcept = default;
SaveClaim& SaveClaim::operator=(SaveClaim&&) noexcept = default;
SaveClaim::~SaveClaim() = default;

Result<SaveClaim> checkpointer::claim_in(std::unique_ptr<storage::Storage> storage, const SaveOptions& options) {
  auto impl = std::make_unique<SaveClaim::Impl>();
  impl->storage = std::move(storage);
  impl->durability = options.durability;
  CAIRN_TRY_ASSIGN(impl->transaction, transfer::SaveTransaction::claim(*impl->storage, next_save_identity(),
                                                                       {options.overwrite, options.alone_as_rank}));
  impl->transaction->expect_any();
  impl->ticket = impl->transaction->ticket();
  return SaveClaim(std::move(impl));
}

Result<SaveClaim> SaveClaim::make(const std::filesystem::path& directory, const SaveOptions& options) {
  auto storage = storage::PosixStorage::make_directory(directory);
  if (!storage) return std::move(storage).error().while_doing(saving_to(directory));
  Result<SaveClaim> claim = checkpointer::claim_in(std::move(*storage), options);
  if (!claim) return std::move(claim).error().while_doing(saving_to(directory));
  return claim;
}

std::string SaveClaim::ticket() const { return transfer::encode_ticket(impl_->ticket); }
SaveId SaveClaim::save_id() const { return impl_->ticket.identity.save_id; }
bool SaveClaim::may_have_committed() const { return impl_->may_have_committed; }

Result<SaveReport> SaveClaim::commit(std::string_view metadata, const std::vector<PublishedFile>& files) {
  // It goes when this call is over: what it has not committed is withdrawn before the caller hears of it.
  const std::unique_ptr<transfer::SaveTransaction> transaction = std::move(impl_->transaction);
  if (!transaction) return Error(ErrorCode::kInvalidArgument, "this claim has been committed, or has failed, already");
  CAIRN_TRY_ASSIGN(Catalog catalog, read_back(metadata, files));
  manifest::CommitRecord record;
  for (const PublishedFile& file : files) record.files.push_back({file.name, file.bytes, file.trailer_checksum});
  Result<transfer::CommitReport> committed =
      transaction->commit(std::string(metadata), std::move(record), impl_->durability);
  impl_->may_have_committed = transaction->may_have_committed();
  if (!committed) return std::move(committed).error();
  return SaveReport{save_id(), std::make_shared<Catalog>(std::move(catalog)), metadata.size(),
                    std::move(committed->warnings)};
}

RankShare::RankShare(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankShare::RankShare(RankShare&&) noexcept = default;
RankShare& RankShare::operator=(RankShare&&) noexcept = default;
RankShare::~RankShare() = default;

Result<RankShare> checkpointer::write_share_in(std::unique_ptr<storage::Storage> storage, std::string_view ticket,
                                               std::uint32_t rank, const StateDict& state, const SaveOptions& options) {
  auto impl = std::make_unique<RankShare::Impl>();
  impl->storage = std::move(storage);
  CAIRN_TRY_ASSIGN(const transfer::SaveTicket decoded, transfer::decode_ticket(ticket));
  CAIRN_TRY_ASSIGN(const SaveItems items, SaveItems::make(state));
  impl->writer = std::make_unique<RankWriter>(*impl->storage, RankPart{decoded, rank, 0, options.file_per_item});
  CAIRN_TRY(impl->writer->write(items.sources(),
                                {options.durability, options.thread_count, options.direct_io, options.interrupted}));
  for (std::size_t i = 0; i < impl->writer->names().size(); ++i) {
    const WrittenFile& file = impl->writer->written()[i];
    impl->files.push_back({impl->writer->names()[i], file.size, file.trailer_checksum});
  }
  return RankShare(std::move(impl));
}

Result<RankShare> RankShare::write(const std::filesystem::path& directory, std::string_view ticket, std::uint32_t rank,
                                   const StateDict& state, const SaveOptions& options) {
  auto storage = storage::PosixStorage::make_directory(directory);
  if (!storage) return std::move(storage).error().while_doing(saving_to(directory));
  Result<RankShare> share = checkpointer::write_share_in(std::move(*storage), ticket, rank, state, options);
  if (!share) return std::move(share).error().while_doing(saving_to(directory));
  return share;
}

const std::vector<PublishedFile>& RankShare::files() const { return impl_->files; }
const std::vector<ItemLocation>& RankShare::places() const { return impl_->writer->places(); }
void RankShare::hand_over() { impl_->writer->files().hand_over(); }
void RankShare::withdraw() { impl_->writer->files().withdraw(); }

}  // namespace cairn
