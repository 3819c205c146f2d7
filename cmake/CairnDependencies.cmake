# The libraries that Cairn links, each with the Debian package that brings it.
include_guard()

function(cairn_require found package)
  if(NOT ${found})
    message(FATAL_ERROR "${package} is missing: apt-get install ${package} (or ./dev build, which does it)")
  endif()
endfunction()

find_package(Threads REQUIRED)

find_path(ISAL_INCLUDE_DIR isa-l/crc.h)
find_library(ISAL_LIBRARY isal)
mark_as_advanced(ISAL_INCLUDE_DIR ISAL_LIBRARY)
cairn_require(ISAL_INCLUDE_DIR libisal-dev)
cairn_require(ISAL_LIBRARY libisal-dev)
add_library(ISAL::isal UNKNOWN IMPORTED)
set_target_properties(ISAL::isal PROPERTIES IMPORTED_LOCATION ${ISAL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${ISAL_INCLUDE_DIR})

find_package(fmt QUIET)
cairn_require(fmt_FOUND libfmt-dev)

if(CAIRN_BUILD_TESTS)
  find_package(GTest QUIET)
  cairn_require(GTest_FOUND libgtest-dev)
  enable_testing()
endif()
if(CAIRN_BUILD_CLI)
  find_package(CLI11 QUIET)
  cairn_require(CLI11_FOUND libcli11-dev)
endif()
if(CAIRN_BUILD_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  if(NOT nanobind_DIR)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_DIR
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  endif()
  find_package(nanobind 3.0 CONFIG REQUIRED)
endif()
