#define _GNU_SOURCE
#include "CApusThreads.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

void apus_thread_name(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }

int apus_timer_new(void) { return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC); }

void apus_timer_set(int timer, uint64_t nanoseconds) {
    // A time of zero would disarm the timer.
    if (nanoseconds == 0) nanoseconds = 1;
    struct itimerspec time = {.it_value = {.tv_sec = nanoseconds / 1000000000, .tv_nsec = nanoseconds % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &time, 0);
}

int apus_thread_number(void) { return (int)syscall(SYS_gettid); }

uintptr_t apus_thread_self(void) { return (uintptr_t)pthread_self(); }

int apus_thread_hasten(void) {
    // On Linux the policy and the niceness belong to the thread. Children do not inherit the policy.
    struct sched_param priority = {.sched_priority = sched_get_priority_min(SCHED_RR)};
    if (sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &priority) == 0) return APUS_THREAD_REALTIME;
    if (setpriority(PRIO_PROCESS, (id_t)apus_thread_number(), -10) == 0) return APUS_THREAD_NICE;
    return APUS_THREAD_USUAL;
}
