#include "commit/model/model_files.h"

#include <algorithm>

#include "format/safetensors/checksums.h"
#include "format/safetensors/header.h"

namespace cairn::commit {
namespace {

constexpr std::size_t kNumberDigits = 5;

std::string padded(std::uint32_t number) {
  std::string text = std::to_string(number);
  text.insert(0, kNumberDigits - std::min(kNumberDigits, text.size()), '0');
  return text;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool take_number(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits != 0;
}

}  // namespace

std::string model_file_name(const SaveTicket& ticket, const ModelFileNumber& number) {
  std::string name = number.shard ? "shard-" + padded(*number.shard) + "-" : std::string();
  name += "model-" + padded(number.file) + "-of-" + padded(number.file_max);
  if (!ticket.fresh) name += "-" + to_decimal(ticket.identity.save_id);
  return name += kModelSuffix;
}

bool is_model_file_name(std::string_view name) {
  if (name == kSingleModelName) return true;
  if (take(name, "shard-") && !(take_number(name) && take(name, "-"))) return false;
  if (!(take(name, "model-") && take_number(name) && take(name, "-of-") && take_number(name))) return false;
  if (take(name, "-") && !take_number(name)) return false;
  return name == kModelSuffix;
}

bool names_a_save(std::string_view name) {
  constexpr std::size_t kIdDigits = 39;  // of to_decimal()
  if (!name.ends_with(kModelSuffix)) return false;
  name.remove_suffix(kModelSuffix.size());
  const std::size_t dash = name.rfind('-');
  return dash != std::string_view::npos && name.size() - dash - 1 == kIdDigits &&
         name.find_first_not_of("0123456789", dash + 1) == std::string_view::npos;
}

safetensors::SaveOrder order_of_save(const SaveIdentity& identity) {
  return {to_hex(identity.job_id), identity.job_start, identity.save_number};
}

Result<ModelFileOrigin> origin_of_model_file(const storage::Storage& storage, const std::string& name) {
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::ReadableFile> file, storage.open(name, false));
  CAIRN_TRY_ASSIGN(const safetensors::Header header, safetensors::read_header(*file));
  ModelFileOrigin origin;
  for (const auto& [key, value] : header.metadata) {
    if (!header.checksums) continue;  // another program may have copied the metadata
    if (key == safetensors::kSaveIdName) origin.save_id = save_id_of_hex(value);
    if (key == safetensors::kFileSetName) origin.set = safetensors::read_file_set(value);
    if (key == safetensors::kSaveOrderName) origin.order = safetensors::read_save_order(value);
  }
  return origin;
}

}  // namespace cairn::commit
