#include "errors.h"

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

#include "text.h"

namespace cairn::python {
namespace {

// (class name, text, errno or 0, [(file, line, function, text)]), the fields of
// cairn._ranks.exception_record.ExceptionRecord; or None.
nb::object record_of(const Error& error) {
  const ExceptionRecord* const record = error.exception();
  if (record == nullptr) return nb::none();
  nb::list frames;
  for (const ExceptionRecord::Frame& frame : record->frames) {
    frames.append(nb::make_tuple(to_str(frame.file), frame.line, to_str(frame.function), to_str(frame.text)));
  }
  return nb::make_tuple(to_str(record->class_name), to_str(record->text), error.error_number(), frames);
}

// The text of the error without the fields, which the exception has as attributes.
std::string bare_message_of(const Error& error) {
  std::string message(error.message());
  if (!error.doing().empty()) message += " (while " + std::string(error.doing()) + ")";
  if (error.causes().size() < 2) return message;
  const std::string_view text = error.what();
  const std::size_t ranks = text.find("; " + std::to_string(error.causes().size()) + " ranks failed:");
  return ranks == std::string_view::npos ? message : message.append(text.substr(ranks));
}

}  // namespace

nb::object exception_of(const Error& error) {
  const nb::object module = nb::module_::import_("cairn._ranks.engine_errors");
  nb::dict place;
  place["bare_message"] = to_str(bare_message_of(error));
  place["key"] = to_str_or_none(error.key());
  place["rank"] = error.rank() ? nb::object(nb::int_(*error.rank())) : nb::none();
  place["file"] = to_str_or_none(error.file());
  place["offset"] = error.offset() ? nb::object(nb::int_(*error.offset())) : nb::none();
  place["expected"] = to_str_or_none(error.expected());
  place["actual"] = to_str_or_none(error.actual());
  place["earlier_save"] = error.earlier_save().empty() ? nb::none() : nb::object(to_str(error.earlier_save()));
  nb::list causes;
  for (const Error& cause : error.causes()) causes.append(nb::make_tuple(exception_of(cause), record_of(cause)));
  return module.attr("from_engine")(to_str(name_of(error.code())), to_str(error.what()), error.error_number(), place,
                                    causes);
}

void register_error_translator() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const Error& error) {
      const nb::object exception = exception_of(error);
      PyErr_SetObject(exception.type().ptr(), exception.ptr());
    }
  });
}

}  // namespace cairn::python
