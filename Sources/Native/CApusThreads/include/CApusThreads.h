// What the Glibc module does not show of threads and timers.
#pragma once

#include <stdint.h>

// Names the calling thread as `top -H` shows it; its first 15 bytes count.
void apus_thread_name(const char *name);

// A timer that becomes readable when it goes off (timerfd_create(2), CLOCK_MONOTONIC, not blocking); -1 with errno.
int apus_timer_new(void);

// Sets the timer to a time of CLOCK_MONOTONIC in nanoseconds, earlier or later than before; one that has passed goes
// off at once.
void apus_timer_set(int timer, uint64_t nanoseconds);
