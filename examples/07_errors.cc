// Provokes four errors, prints the fields of each error, and chooses what to do by the code. After the damage of the
// newest checkpoint the program loads the checkpoint before.
//
//   07_errors DIR
#include <cairn/cairn.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using cairn::DType;
using cairn::Error;
using cairn::ErrorCode;
using cairn::TensorView;

constexpr std::int64_t kCount = 100'000;

// A code exists because a caller reacts differently to the code.
const char* remedy(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kCorrupt:
    case ErrorCode::kUnsafe:
    case ErrorCode::kNotFound: return "load an older checkpoint";
    case ErrorCode::kReplaced: return "open the directory again";
    case ErrorCode::kUnavailable:
    case ErrorCode::kNoSpace: return "repair the storage or free space, then try again";
    case ErrorCode::kSuperseded:
    case ErrorCode::kCancelled: return "nothing: the checkpoint in place is whole";
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMissingKey:
    case ErrorCode::kUnsupported: return "mend the call";
    case ErrorCode::kInternal: return "report the bug";
  }
  return "";
}

// Prints the fields. what() has the same fields in a line.
void print(const Error& error) {
  std::printf("%s: %s\n", std::string(name_of(error.code())).c_str(), error.message().c_str());
  if (error.key()) std::printf("  key       %s\n", error.key()->c_str());
  if (error.file()) std::printf("  file      %s\n", std::filesystem::path(*error.file()).filename().c_str());
  if (error.offset()) std::printf("  offset    %llu\n", static_cast<unsigned long long>(*error.offset()));
  if (error.expected()) std::printf("  expected  %s\n", error.expected()->c_str());
  if (error.actual()) std::printf("  actual    %s\n", error.actual()->c_str());
  if (error.rank()) std::printf("  rank      %lld\n", static_cast<long long>(*error.rank()));
  for (const Error& cause : error.causes()) print(cause);  // of a call of several ranks: the error of each rank
  std::printf("  -> %s\n", remedy(error));
}

cairn::Result<cairn::StateDict> describe(std::vector<float>& weight, std::int64_t step) {
  cairn::StateDict state;
  const auto count = static_cast<std::int64_t>(weight.size());
  CAIRN_TRY(state.add_tensor("model.weight", TensorView::contiguous(weight.data(), DType::kFloat32, {count})));
  CAIRN_TRY(state.add_value("step", step));
  return state;
}

cairn::Result<void> save_steps(const std::filesystem::path& root) {
  for (const std::int64_t step : {1, 2}) {
    std::vector<float> weight(kCount, static_cast<float>(step));
    CAIRN_TRY_ASSIGN(const cairn::StateDict state, describe(weight, step));
    CAIRN_TRY(cairn::save(root / ("step-" + std::to_string(step)), state));
  }
  return {};
}

// Inverts the middle byte of the only data file, as a damaged disk may do.
cairn::Result<void> damage(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(const cairn::Checkpoint checkpoint, cairn::open(directory));
  const std::filesystem::path path = directory / checkpoint.files().front();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
  const int byte = file.seekg(middle).get();
  file.seekp(middle).put(static_cast<char>(~byte));
  if (!file.flush()) return Error(ErrorCode::kUnavailable, "can't change " + path.string());
  return {};
}

// Loads the newest checkpoint that is not damaged. Returns its step.
cairn::Result<std::int64_t> resume(const std::filesystem::path& root) {
  for (const std::int64_t step : {2, 1}) {
    std::vector<float> weight(kCount);
    CAIRN_TRY_ASSIGN(cairn::StateDict state, describe(weight, 0));
    const auto loaded = cairn::load(root / ("step-" + std::to_string(step)), state);
    if (loaded) return step;
    print(loaded.error());
    if (loaded.error().code() != ErrorCode::kCorrupt) return loaded.error();  // an older checkpoint is no remedy
  }
  return Error(ErrorCode::kNotFound, "no checkpoint is whole");
}

cairn::Result<bool> run(const std::filesystem::path& root) {
  CAIRN_TRY(save_steps(root));

  std::vector<float> short_weight(kCount - 1);
  CAIRN_TRY_ASSIGN(cairn::StateDict other_shape, describe(short_weight, 0));
  const auto refused = cairn::load(root / "step-2", other_shape);
  if (refused) return false;
  print(refused.error());  // kInvalidArgument

  std::vector<float> weight(kCount);
  CAIRN_TRY_ASSIGN(cairn::StateDict more_keys, describe(weight, 0));
  CAIRN_TRY(more_keys.add_value("learning_rate", 0.01));
  const auto incomplete = cairn::load(root / "step-2", more_keys);
  if (incomplete) return false;
  print(incomplete.error());  // kMissingKey
  cairn::LoadOptions partial;
  partial.allow_partial = true;  // a key that the checkpoint lacks keeps its value
  CAIRN_TRY(cairn::load(root / "step-2", more_keys, partial));

  try {
    cairn::open(root / "step-3").value();  // value() throws the Error of a failed Result
    return false;
  } catch (const Error& error) {
    print(error);  // kNotFound
  }

  CAIRN_TRY(damage(root / "step-2"));
  CAIRN_TRY_ASSIGN(const std::int64_t step, resume(root));  // prints kCorrupt
  std::printf("resumed at step %lld\n", static_cast<long long>(step));
  return step == 1;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  try {
    const cairn::Result<bool> good = run(words[1]);
    if (!good) std::fprintf(stderr, "%s\n", good.error().what());
    return good && *good ? 0 : 1;
  } catch (const std::exception& error) {  // of the standard library: no memory, no file
    return std::fprintf(stderr, "%s\n", error.what()), 1;
  }
}
