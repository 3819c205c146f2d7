#include "commit/save_ticket.h"

#include <algorithm>
#include <span>

#include "commit/dcp_names.h"
#include "format/manifest/commit_record.h"

namespace cairn::commit {
namespace {

using manifest::append_varint;
using manifest::CodedReader;

void append_id(std::string& out, const SaveId& id) {
  append_varint(out, id.high);
  append_varint(out, id.low);
}

Result<SaveId> read_id(CodedReader& reader) {
  SaveId id;
  CAIRN_TRY_ASSIGN(id.high, reader.varint());
  CAIRN_TRY_ASSIGN(id.low, reader.varint());
  return id;
}

}  // namespace

std::string data_file_name(const SaveTicket& ticket, std::uint32_t rank, std::uint32_t number) {
  constexpr std::size_t kDigitsMin = 6;
  std::string n = std::to_string(number);
  if (!ticket.fresh) {
    n = to_decimal(ticket.identity.save_id) + std::string(kDigitsMin - std::min(kDigitsMin, n.size()), '0') + n;
  }
  return "__" + std::to_string(rank) + "_" + n + std::string(kDataFileSuffix);
}

void append_identity(std::string& out, const SaveIdentity& identity) {
  append_id(out, identity.save_id);
  append_id(out, identity.job_id);
  append_varint(out, identity.save_number);
  append_varint(out, identity.job_start);
  out.push_back(static_cast<char>(identity.form));
}

Result<SaveIdentity> read_identity(CodedReader& reader) {
  SaveIdentity identity;
  CAIRN_TRY_ASSIGN(identity.save_id, read_id(reader));
  CAIRN_TRY_ASSIGN(identity.job_id, read_id(reader));
  CAIRN_TRY_ASSIGN(identity.save_number, reader.varint());
  CAIRN_TRY_ASSIGN(identity.job_start, reader.varint());
  if (identity.job_start > manifest::kJobStartMax) return reader.damaged("a job that starts after the year 2262");
  CAIRN_TRY_ASSIGN(const std::uint8_t form, reader.byte());
  if (form > static_cast<std::uint8_t>(SaveForm::kDirectory)) return reader.damaged("a save of an unknown form");
  identity.form = static_cast<SaveForm>(form);
  return identity;
}

void append_ticket(std::string& out, const SaveTicket& ticket) {
  append_identity(out, ticket.identity);
  out.push_back(ticket.fresh ? 1 : 0);
}

Result<SaveTicket> read_ticket(CodedReader& reader) {
  SaveTicket ticket;
  CAIRN_TRY_ASSIGN(ticket.identity, read_identity(reader));
  CAIRN_TRY_ASSIGN(const std::uint8_t fresh, reader.byte());
  if (fresh > 1) return reader.damaged("a flag that is neither 0 nor 1");
  ticket.fresh = fresh == 1;
  return ticket;
}

std::string encode_ticket(const SaveTicket& ticket) {
  std::string message;
  append_ticket(message, ticket);
  return message;
}

Result<SaveTicket> decode_ticket(std::string_view message) {
  CodedReader reader(message);
  CAIRN_TRY_ASSIGN(const SaveTicket ticket, read_ticket(reader));
  if (reader.left() != 0) return reader.damaged("more bytes than a ticket has");
  return ticket;
}

}  // namespace cairn::commit
