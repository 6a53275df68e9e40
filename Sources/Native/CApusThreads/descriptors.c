#define _GNU_SOURCE
#include "CApusThreads.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

// linux/close_range.h, Linux 5.11.
enum { CLOEXEC_RANGE = 1 << 2, NUMBERS_MAX = 1 << 20 };

void apus_descriptors_close_on_exec(void) {
    if (syscall(SYS_close_range, 3U, ~0U, CLOEXEC_RANGE) == 0) return;
    for (int fd = 3; fd < NUMBERS_MAX; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void apus_descriptors_close(void) {
    if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0) return;
    for (int fd = 3; fd < NUMBERS_MAX; fd++) close(fd);
}
