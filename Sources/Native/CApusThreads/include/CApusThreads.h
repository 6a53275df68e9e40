// Thread and timer functions that the Glibc module does not export.
#pragma once

#include <stdint.h>

// Names the calling thread for `top -H`. Only the first 15 bytes are used.
void apus_thread_name(const char *name);

// A timer that becomes readable when it fires (timerfd_create(2), CLOCK_MONOTONIC, non-blocking); -1 with errno.
int apus_timer_new(void);

// Sets the timer to a time of CLOCK_MONOTONIC in nanoseconds, earlier or later than before. A time in the past fires at
// once.
void apus_timer_set(int timer, uint64_t nanoseconds);

// The calling thread's number in the system (gettid(2)).
int apus_thread_number(void);

// A value that identifies the calling thread among all running ones, without a system call; never 0.
uintptr_t apus_thread_self(void);

// The calling thread's scheduling after apus_thread_hasten.
enum { APUS_THREAD_USUAL = 0, APUS_THREAD_NICE = 1, APUS_THREAD_REALTIME = 2 };

// Raises the calling thread's priority, as far as the process may: round robin at the lowest real-time priority
// (sched(7)), otherwise niceness -10. For threads that work for microseconds at a time.
int apus_thread_hasten(void);

// Installs handlers for the signals of a crash (SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE). They shut down
// every socket of the process, write a line and the frames to standard error, and let the signal end the process. If
// chains is not 0, the previous handlers run after the line, instead of the frames and the end.
void apus_crash_install(int chains);

// Sets close-on-exec for every descriptor except standard input, output and error.
void apus_descriptors_close_on_exec(void);

// Closes every descriptor but standard input, output and error.
void apus_descriptors_close(void);

// From now on SIGTERM and SIGINT do not end the process; apus_stop_wait returns for them. Returns -1 with errno on
// failure.
int apus_stop_install(void);

// Blocks until one of the two arrives. For one thread, after apus_stop_install.
void apus_stop_wait(void);

// From now on the two end the process again, those that are blocked in the calling thread included. Returns 1 if one
// has arrived since apus_stop_install.
int apus_stop_end(void);
