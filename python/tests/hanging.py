"""A library for LD_PRELOAD. Reads and writes hang in the processes that load the library, while a given file exists."""

from pathlib import Path

import preloaded

# $HANG is CALL:FILE. CALL makes FILE.reached, and waits while FILE exists. CALL is pread, pwrite or fsync of a data
# file, large (pread of 64 KiB or more of a data file), lease (pread of a manager's lease), renameat to a name that ends
# with .metadata, exchange (renameat2 of the new directory of a save), unlinkat of a data file, or readlink or realpath
# of a name that ends with .link. The engine makes all of these calls through the dynamic symbols. Of the interpreter's
# own calls only readlink is affected.
_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
static const char *file_of(const char *call) {
  const char *file = getenv("HANG");
  return file == NULL || strncmp(file, call, strlen(call)) != 0 ? NULL : file + strlen(call) + 1;
}
static void hang(const char *file) {
  char reached[4096];
  if (file == NULL || access(file, F_OK) != 0) return;
  snprintf(reached, sizeof reached, "%s.reached", file);
  close(open(reached, O_WRONLY | O_CREAT, 0600));
  while (access(file, F_OK) == 0) usleep(5000);
}
static void wait_while_hanging(int fd, const char *call, const char *name) {
  const char *file = file_of(call);
  if (file == NULL) return;
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  if (strstr(path, name) != NULL) hang(file);
}
ssize_t pread(int fd, void *data, size_t length, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pread");
  wait_while_hanging(fd, "pread", ".distcp");
  if (length >= 65536) wait_while_hanging(fd, "large", ".distcp");
  wait_while_hanging(fd, "lease", ".cairn-manager");
  return real(fd, data, length, offset);
}
ssize_t pread64(int fd, void *data, size_t length, off_t offset) { return pread(fd, data, length, offset); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
  static ssize_t (*real)(int, const void *, size_t, off_t);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
  wait_while_hanging(fd, "pwrite", ".distcp");
  return real(fd, data, length, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return pwrite(fd, data, length, offset); }
int fsync(int fd) {
  static int (*real)(int);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "fsync");
  wait_while_hanging(fd, "fsync", ".distcp");
  return real(fd);
}
int unlinkat(int folder, const char *name, int flags) {
  static int (*real)(int, const char *, int);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
  if (strstr(name, ".distcp") != NULL) hang(file_of("unlinkat"));
  return real(folder, name, flags);
}
int renameat(int old_folder, const char *old_name, int new_folder, const char *new_name) {
  static int (*real)(int, const char *, int, const char *);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "renameat");
  if (strstr(new_name, ".metadata") != NULL) hang(file_of("renameat"));
  return real(old_folder, old_name, new_folder, new_name);
}
int renameat2(int old_folder, const char *old_name, int new_folder, const char *new_name, unsigned flags) {
  static int (*real)(int, const char *, int, const char *, unsigned);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "renameat2");
  if (flags == 2 && strstr(old_name, ".cairn-new-") == old_name) hang(file_of("exchange"));
  return real(old_folder, old_name, new_folder, new_name, flags);
}
static void wait_for_link(const char *path) {
  if (strstr(path, ".link") != NULL) hang(file_of("readlink"));
}
ssize_t readlink(const char *path, char *target, size_t size) {
  static ssize_t (*real)(const char *, char *, size_t);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "readlink");
  wait_for_link(path);
  return real(path, target, size);
}
char *realpath(const char *path, char *resolved) {
  static char *(*real)(const char *, char *);
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "realpath");
  wait_for_link(path);
  return real(path, resolved);
}
"""


def library(folder: Path) -> Path:
    """Builds the library in `folder` and returns its path."""
    return preloaded.library(_SHIM, folder)
