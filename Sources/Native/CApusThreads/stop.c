#define _GNU_SOURCE
#include "CApusThreads.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const int stop_signals[] = {SIGTERM, SIGINT};
enum { STOP_SIGNAL_COUNT = sizeof stop_signals / sizeof *stop_signals };

static atomic_int stop_requested;
static int stop_event = -1;

// Only async-signal-safe functions (signal-safety(7)).
static void stop_arrived(int number) {
    (void)number;
    int saved = errno;
    atomic_store(&stop_requested, 1);
    uint64_t one = 1;
    ssize_t written = write(stop_event, &one, sizeof one);
    (void)written;
    errno = saved;
}

int apus_stop_install(void) {
    if (stop_event < 0) stop_event = eventfd(0, EFD_CLOEXEC);
    if (stop_event < 0) return -1;
    struct sigaction action = {.sa_handler = stop_arrived, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (int index = 0; index < STOP_SIGNAL_COUNT; index++)
        if (sigaction(stop_signals[index], &action, NULL) != 0) return -1;
    return 0;
}

void apus_stop_wait(void) {
    uint64_t count;
    while (read(stop_event, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

int apus_stop_end(void) {
    sigset_t set;
    sigemptyset(&set);
    for (int index = 0; index < STOP_SIGNAL_COUNT; index++) {
        signal(stop_signals[index], SIG_DFL);
        sigaddset(&set, stop_signals[index]);
    }
    // A program that is executed inherits this thread's mask, and its signals that are pending.
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    return atomic_load(&stop_requested);
}
