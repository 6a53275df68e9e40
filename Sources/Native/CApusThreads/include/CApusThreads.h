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

// The calling thread's number, as the system knows it (gettid(2)).
int apus_thread_number(void);

// Tells the calling thread from every other that runs, without a system call; never 0.
uintptr_t apus_thread_self(void);

// How the calling thread is scheduled after apus_thread_hasten.
enum { APUS_THREAD_USUAL = 0, APUS_THREAD_NICE = 1, APUS_THREAD_REALTIME = 2 };

// Has the calling thread run before others, as far as the process may: round robin at the lowest real-time priority
// (sched(7)), else niceness -10. For threads that work for microseconds at a time.
int apus_thread_hasten(void);

// Installs handlers of the signals that a crash brings (SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE). They shut
// every socket of the process, write a line and the frames to standard error, and let the signal end the process.
// With chains not 0 the handlers that were there before come after the line, instead of frames and end.
void apus_crash_install(int chains);

// Makes every descriptor but standard input, output and error close when the process becomes another program.
void apus_descriptors_close_on_exec(void);

// Closes every descriptor but standard input, output and error.
void apus_descriptors_close(void);
