# The compiler and the libraries that Cairn needs, each with its Debian package. One message names all missing
# packages: one installation suffices.
include_guard()

set(cairn_missing "")

# cairn_need(<package> <header> <given>): notes <package> as missing if <header> is not found, unless the variable <given>
# gives the library's place. CMake finds headers before C++ is enabled, but not libraries: until then the folder of the
# architecture (/usr/lib/x86_64-linux-gnu) is unknown.
macro(cairn_need package header given)
  find_path(CAIRN_HEADER_OF_${package} ${header})
  mark_as_advanced(CAIRN_HEADER_OF_${package})
  if(NOT CAIRN_HEADER_OF_${package} AND NOT ${given})
    list(APPEND cairn_missing ${package})
  endif()
endmacro()

# CMake's names of C++ compilers, for a user who names no compiler.
find_program(CAIRN_COMPILER NAMES c++ g++ clang++ icpx)
mark_as_advanced(CAIRN_COMPILER)
if(NOT CAIRN_COMPILER AND NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  list(APPEND cairn_missing g++)
endif()
cairn_need(libisal-dev isa-l/crc.h ISAL_INCLUDE_DIR)
cairn_need(libfmt-dev fmt/core.h fmt_DIR)
if(CAIRN_BUILD_CLI)
  cairn_need(libcli11-dev CLI/CLI.hpp CLI11_DIR)
endif()
if(CAIRN_BUILD_TESTS)
  cairn_need(libgtest-dev gtest/gtest.h GTest_DIR)
endif()
if(CAIRN_BUILD_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('include'))"
                  OUTPUT_VARIABLE include_dir OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT EXISTS ${include_dir}/Python.h AND NOT Python_INCLUDE_DIR)
    list(APPEND cairn_missing python3-dev)
  endif()
endif()
if(cairn_missing)
  list(JOIN cairn_missing " " packages)
  message(FATAL_ERROR "Missing for this build of Cairn: ${packages}\n"
          "Debian and Ubuntu:\n  apt-get install ${packages}\n"
          "(`./dev build` installs them.) Elsewhere: a compiler of C++20 (GCC 12, Clang 14 or later), ISA-L 2.30, fmt 9 and "
          "CLI11 2.1 or later, with their headers. `pip install --only-binary cairn-checkpoint cairn-checkpoint` needs none.")
endif()

enable_language(CXX)
find_package(Threads REQUIRED)

find_path(ISAL_INCLUDE_DIR isa-l/crc.h REQUIRED)
find_library(ISAL_LIBRARY isal REQUIRED)
mark_as_advanced(ISAL_INCLUDE_DIR ISAL_LIBRARY)
add_library(ISAL::isal UNKNOWN IMPORTED)
set_target_properties(ISAL::isal PROPERTIES IMPORTED_LOCATION ${ISAL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${ISAL_INCLUDE_DIR})

find_package(fmt REQUIRED)
if(CAIRN_BUILD_TESTS)
  find_package(GTest REQUIRED)
  enable_testing()
endif()
if(CAIRN_BUILD_CLI)
  find_package(CLI11 REQUIRED)
endif()
if(CAIRN_BUILD_PYTHON)
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
  if(NOT nanobind_DIR)
    execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_DIR
                    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  endif()
  find_package(nanobind 3.0 CONFIG REQUIRED)
endif()
