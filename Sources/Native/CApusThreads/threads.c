#include "CApusThreads.h"

#include <sys/prctl.h>
#include <sys/timerfd.h>

void apus_thread_name(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }

int apus_timer_new(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC); }

void apus_timer_set(int timer, uint64_t nanoseconds) {
    // A time of zero would take the timer back.
    if (nanoseconds == 0) nanoseconds = 1;
    struct itimerspec time = {.it_value = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &time, 0);
}
